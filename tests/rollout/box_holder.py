"""A process that holds boxes until it is killed: `python -m tests.rollout.box_holder CONFIG NUM`.

It prints a JSON line when its boxes run something. CONFIG: a SandboxConfig as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from agentrl.config_sandbox import SandboxConfig
from agentrl.rollout.boxes import Boxes
from agentrl.sandbox import SandboxSpec


async def main(config: SandboxConfig, num_boxes: int) -> None:
    async with Boxes(config, run=f"holder-{os.getpid()}") as boxes:
        held = [await boxes.take(SandboxSpec(memory_bytes=2**28), hold_s=600) for _ in range(num_boxes)]
        for box in held:
            session = await box.session()
            await session.run("(setsid sleep 86399 &) ; sleep 86399 & echo x > file", timeout_s=60)
        print(json.dumps({"pid": os.getpid(), "watchman": boxes.backends.watchman.pid}), flush=True)
        if sys.stdin.readline():  # told to end in order
            return
        await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(SandboxConfig.model_validate_json(sys.argv[1]), int(sys.argv[2])))
