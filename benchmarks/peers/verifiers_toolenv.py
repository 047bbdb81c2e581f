"""verifiers' ToolEnv on an endpoint in another process that answers at once: 4 turns, a tool call each but the last.

Run it with an interpreter that has verifiers (and not agentrl):

    python3.11 -m venv /tmp/verifiers && /tmp/verifiers/bin/pip install verifiers==0.3.1
    /tmp/verifiers/bin/python benchmarks/peers/verifiers_toolenv.py [--rollouts 256] [--concurrency 256]

Prints one JSON line with turns/s and milliseconds of CPU a turn. `benchmarks/loop.py` measures the same of agentrl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time

NUM_TURNS = 4


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression with one operation."""
    left, _, right = expression.partition("*")
    return str(int(left) * int(right))


def answer(body: dict) -> dict:
    """A chat completion: tool calls, then an answer; the number of earlier replies says which turn it is."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    message: dict = {"role": "assistant", "content": "Answer: 51", "tool_calls": None}
    if turn < NUM_TURNS - 1:
        function = {"name": "calculator", "arguments": '{"expression": "17 * 3"}'}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        message = {"role": "assistant", "content": "I use the calculator.", "tool_calls": [call]}
    reason = "tool_calls" if message["tool_calls"] else "stop"
    usage = {"prompt_tokens": 240, "completion_tokens": 53, "total_tokens": 293}
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return {
        "id": "c", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice], "usage": usage
    }  # fmt: skip


async def serve() -> None:
    """Answer until standard input is closed."""
    from aiohttp import web

    async def chat(request: web.Request) -> web.Response:
        return web.json_response(answer(await request.json()))

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def measure(port: int, num_rollouts: int, concurrency: int) -> dict:
    import verifiers.legacy as vf
    from datasets import Dataset
    from verifiers.legacy.types import ClientConfig

    def correct(completion: list, **_: object) -> float:
        last = completion[-1]
        return float("51" in str(getattr(last, "content", None) or last["content"]))

    prompt = [
        {"role": "system", "content": "Use the calculator, one operation per call. End with: Answer: <number>"},
        {"role": "user", "content": "What is 17 * 3?"},
    ]
    data = Dataset.from_list([{"prompt": prompt, "answer": "51", "example_id": n} for n in range(num_rollouts)])
    env = vf.ToolEnv(tools=[calculator], max_turns=10, eval_dataset=data, rubric=vf.Rubric(funcs=[correct]))
    os.environ["SCRIPTED_KEY"] = "none"
    client = ClientConfig(api_base_url=f"http://127.0.0.1:{port}/v1", api_key_var="SCRIPTED_KEY", max_connections=4096)
    wall, cpu = time.perf_counter(), time.process_time()
    outputs = await env.evaluate(
        client=client, model="scripted", num_examples=num_rollouts, max_concurrent=concurrency, state_columns=[]
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    rewards = [output["reward"] for output in outputs["outputs"]]
    num_turns = num_rollouts * NUM_TURNS
    return {
        "name": f"verifiers {vf.__version__ if hasattr(vf, '__version__') else ''} ToolEnv".replace("  ", " "),
        "turns_per_s": round(num_turns / wall, 1),
        "cpu_ms_per_turn": round(1000 * cpu / num_turns, 2),
        "solved": sum(rewards),
        "rollouts": num_rollouts,
        "concurrency": concurrency,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=256)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
        return
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        port = int(process.stdout.readline())
        print(json.dumps(asyncio.run(measure(port, options.rollouts, options.concurrency))))
        process.stdin.close()


if __name__ == "__main__":
    main()
