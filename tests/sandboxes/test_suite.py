"""The suite that ships for anyone's backend, on ours; and that it sees a box with a hole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrl.sandboxes.bubblewrap import BubblewrapBackend, BubblewrapOptions
from agentrl.sandboxes.bubblewrap.backend import bwrap
from agentrl.sandboxes.local import LocalBackend, LocalOptions
from agentrl.testing.sandbox import Verdict, check, verify


async def test_bubblewrap_keeps_the_contract_and_nothing_gets_out(bubblewrap: BubblewrapBackend) -> None:
    """E07 F07 G02 G03 G08 G09 G10 G12, and every escape of the suite."""
    results = await check(bubblewrap, num_at_once=6)
    verify(results)
    assert len(results) >= 48
    if not (await bubblewrap.preflight()).not_enforced:
        assert not [r.check.name for r in results if r.verdict is Verdict.NOT_SHOWN]


async def test_local_keeps_the_contract_and_no_escape_is_tried_on_it() -> None:
    results = await check(LocalBackend(LocalOptions(unsafe=True), run="test"), num_at_once=6)
    verify(results)
    assert len(results) >= 20 and not any(result.check.is_escape for result in results)


HOLES = {
    "network": (["--unshare-net"], []),
    "host_proc": (["--unshare-pid", "--as-pid-1"], []),
    "user_namespaces": (["--seccomp"], []),
    "odd_sockets": (["--seccomp"], []),
    "host_files": ([], ["--bind", "/tmp", "/tmp"]),
    "read_only_system": ([], ["--bind", "/tmp", "/opt"]),
}
"""Check → bwrap's arguments that a bad build of a box would lack, and those that it would have too many."""


@pytest.mark.parametrize("name", HOLES)
async def test_a_box_with_a_hole_is_found_out(
    name: str, bubblewrap: BubblewrapBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The escapes can fail: each does where what it tests is taken away."""
    missing, added = HOLES[name]
    real, fake = bwrap(), tmp_path / "bwrap"
    fake.write_text(
        f"#!{sys.executable} -IS\n"
        "import os, sys\n"
        f"words, missing, added = sys.argv[1:], {missing!r}, {added!r}\n"
        "end = words.index('--')\n"
        "before, after = words[:end], words[end:]\n"
        "for word in missing:\n"
        "    while word in before:\n"
        "        at = before.index(word)\n"
        "        del before[at : at + (2 if word == '--seccomp' else 1)]\n"
        "at = before.index('--remount-ro')\n"
        f"os.execv({real!r}, ['bwrap', *before[:at], *added, *before[at:], *after])\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin:/usr/sbin:/sbin")
    (result,) = await check(BubblewrapBackend(BubblewrapOptions(), run="test"), only=[name])
    assert result.verdict is Verdict.FAILED, result
