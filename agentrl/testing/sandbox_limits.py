"""What a box may use, and what happens to whoever wants more. Checks of `agentrl.testing.sandbox`."""

from __future__ import annotations

import time
from contextlib import suppress

from agentrl.sandbox import Sandbox
from agentrl.testing.sandbox import Bench, escape, processes, python, run, says

MIB = 1024**2


@escape("a fork bomb stops at the box's number of processes, and the box goes on (G08)")
async def fork_bomb(bench: Bench) -> None:
    async with bench.own_box(max_processes=64) as box:
        result = await box.exec(":(){ :|:& };:; sleep 20", timeout_s=2)
        assert result.timed_out or result.exit_code != 0, result
        await _still_works(box)
        count = (
            "import os, signal\n"
            "n = 0\n"
            "try:\n"
            "    while n < 500:\n"
            "        if os.fork() == 0: signal.pause()\n"
            "        n += 1\n"
            "except OSError: pass\n"
            "print(n)"
        )
        forked = int((await python(box, count)).stdout or b"0")
        assert forked <= 64, f"{forked} processes"
        await _still_works(box)


@escape("1 GB doesn't fit into 256 MB; only the command that wanted it ends (G08)")
async def big_allocation(bench: Bench) -> None:
    async with bench.own_box(memory_bytes=256 * MIB, disk_bytes=32 * MIB) as box:
        result = await python(box, "x = bytearray(10**9); print('got it')")
        assert result.exit_code != 0 and b"got it" not in result.stdout, result
        await _still_works(box)


@escape("the limit is for all processes together, and a session's shell that is hit is told")
async def memory_together(bench: Bench) -> None:
    bench.needs("memory_bytes")
    async with bench.own_box(memory_bytes=256 * MIB, disk_bytes=32 * MIB) as box:
        hog = "import time; x = bytearray(60 * 2**20); time.sleep(3)"
        result = await run(box, f'for n in 1 2 3 4 5 6 7 8; do python3 -c "{hog}" & done; wait')
        assert result.out_of_memory, result
        await _still_works(box)


@escape("out of memory, kill -9 by itself and a failing test are three outcomes (G09)")
async def three_ends(bench: Bench) -> None:
    bench.needs("memory_bytes")
    async with bench.own_box(memory_bytes=128 * MIB, disk_bytes=32 * MIB) as box:
        hungry = await python(box, "x = bytearray(10**9)")
        killed = await run(box, "kill -9 $$")
        failing = await run(box, "false")
        ends = [(r.exit_code, r.out_of_memory) for r in (hungry, killed, failing)]
        assert ends == [(137, True), (137, False), (1, False)], ends


@escape("the disk ends at its size, in every folder that can be written to; commands still run (G10)")
async def disk_fill(bench: Bench) -> None:
    bench.needs("disk_bytes")
    async with bench.own_box(disk_bytes=32 * MIB) as box:
        for folder in (".", "/tmp", "/dev/shm"):
            result = await run(box, f"dd if=/dev/zero of={folder}/fill bs=1M count=100; ls -l {folder}/fill")
            size = int((result.stdout.split() or [b""] * 5)[4] or 0)
            assert size <= 32 * MIB, f"{size} bytes in {folder}"
            assert "No space left" in result.text or size == 0, result.text
            await says(box, f"echo still here; cat {folder}/fill | wc -c")
            await run(box, f"rm -f {folder}/fill")
        await says(box, "touch small")


@escape("a full disk is an OSError of who writes, and no lost box")
async def write_to_full_disk(bench: Bench) -> None:
    bench.needs("disk_bytes")
    async with bench.own_box(disk_bytes=32 * MIB) as box:
        try:
            await box.write("big", b"x" * (48 * MIB))
        except OSError:
            await box.write("big", b"")
            await _still_works(box)
        else:
            raise AssertionError("48 MB were written to 32 MB")


@escape("endless output ends at the time limit, takes no memory here, and the box goes on (E07)")
async def endless_output(bench: Bench) -> None:
    box = await bench.box()
    for line in ("yes", "cat /dev/zero >&2"):
        result = await box.exec(line, timeout_s=1.5, max_output_bytes=10_000)
        kept = len(result.stdout) + len(result.stderr)
        assert result.timed_out and kept < 11_000 and result.num_left_out_bytes > 10_000_000, result.num_left_out_bytes
    await _still_works(box)


@escape("a box gets its share of the CPUs and no more")
async def cpu_share(bench: Bench) -> None:
    bench.needs("cpus")
    spin = "import time; t = time.time()\nwhile time.time() < t + 2: pass\nprint(time.process_time())"
    async with bench.own_box(cpus=0.25) as box:
        used = float((await python(box, spin)).stdout)
        assert used < 1.2, f"{used} s of CPU in 2 s, with a quarter of one"


@escape("daemons don't outlive the command that started them")
async def daemons(bench: Bench) -> None:
    box = await bench.box()
    fork_twice = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        [os.close(n) for n in (0, 1, 2)]\n"
        "        time.sleep(35.25)\n"
        "    os._exit(0)\n"
        "os.wait()"
    )
    await python(box, fork_twice)
    await run(box, "nohup setsid sleep 35.25 >/dev/null 2>&1 </dev/null &")
    assert not await processes(box, "35.25")


@escape("neither kill -9 -1, nor killing or stopping what started a command, ends the box (R2)")
async def kill_everything(bench: Bench) -> None:
    async with bench.own_box() as box:
        session = await box.session()
        for line in ("kill -9 -1", "kill -9 $PPID; sleep 20", "kill -9 1; kill -TERM 1; kill -STOP 1; kill -HUP 1"):
            await box.exec(line, timeout_s=1)
            await session.run(line, timeout_s=1)
            await _still_works(box)
        started = time.monotonic()
        stopped = await box.exec("kill -STOP $PPID; sleep 36.25", timeout_s=0.5)
        assert stopped.timed_out and time.monotonic() - started < 8, stopped
        loop = "while :; do kill -9 -1; done"
        await box.exec(f"trap '' TERM; (setsid sh -c '{loop}' &); {loop}", timeout_s=1)
        await _still_works(box)
        assert not await processes(box, "kill -9 -1")
        assert (await session.run("echo back", timeout_s=5)).stdout.endswith(b"back\n")


@escape("what speaks with the host can't be given limits, a lower place in the scheduler, or another processor (R2)")
async def limits_of_the_server(bench: Bench) -> None:
    attack = (
        "import os, resource as r\n"
        "for pid in [1, os.getppid(), *map(int, filter(str.isdigit, os.listdir('/proc')))]:\n"
        "    if pid == os.getpid(): continue\n"
        "    for name in ('CPU', 'NOFILE', 'AS', 'DATA', 'FSIZE', 'STACK'):\n"
        "        try: r.prlimit(pid, getattr(r, 'RLIMIT_' + name), (0, 0))\n"
        "        except OSError: pass\n"
        "    try: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))\n"
        "    except OSError: pass\n"
    )
    async with bench.own_box() as box:
        session = await box.session()
        await session.run(f"cat > attack.py <<'EOF'\n{attack}EOF\npython3 attack.py", timeout_s=10)
        await python(box, attack)
        for _ in range(20):
            await _still_works(box)


@escape("neither folders without end nor thousands of files keep the host from reading a tree, or end the box (R2)")
async def odd_trees(bench: Bench) -> None:
    deep = "import os\nfor _ in range(1500):\n    os.mkdir('a')\n    os.chdir('a')\n"
    many = "import os\nos.mkdir('many')\nfor n in range(5_000): open(f'many/{n}', 'w').close()"
    async with bench.own_box() as box:
        await python(box, deep)
        await _read_tree(box, "a")
        await python(box, many)
        await _read_tree(box, "many")
        await run(
            box, "ln -s loop loop; ln -s . itself; mkfifo pipe; touch \"$(printf 'odd\\n\\377')\"; chmod 000 many"
        )
        await _read_tree(box, ".")
        await _still_works(box)


async def _read_tree(box: Sandbox, path: str) -> None:
    """An archive, or the error of a tree that can't be read; not a lost box."""
    with suppress(OSError, ValueError):
        await box.read_tree(path)


async def _still_works(box: Sandbox) -> None:
    assert (await says(box, "echo fine")) == "fine"
    await box.write("probe", b"probe")
    assert await box.read("probe") == b"probe"
