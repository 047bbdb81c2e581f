"""Where cgroups can be made: version 1, version 2, and the part of a hierarchy that a container sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.sandboxes.bubblewrap import cgroups
from agentrl.sandboxes.bubblewrap.cgroups import Parents


def machine(tmp_path: Path, mounts: list[tuple[str, Path, str, str]], own: str) -> Path:
    """A /proc/self with those mounts (root, folder, kind, options) and own groups."""
    lines = [f"30 20 0:26 {root} {folder} rw - {kind} {kind} {options}" for root, folder, kind, options in mounts]
    (tmp_path / "mountinfo").write_text("\n".join(["1 0 8:1 / / rw - ext4 /dev/a rw", *lines]) + "\n")
    (tmp_path / "cgroup").write_text(own)
    return tmp_path


def v2_group(folder: Path, controllers: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.subtree_control").write_text(controllers)
    (folder / "cgroup.procs").write_text("")
    return folder


def test_version_2_takes_the_nearest_group_that_hands_controllers_down(tmp_path: Path) -> None:
    """A group with processes of its own can't: the session's scope; the slice above it does."""
    top = v2_group(tmp_path / "fs", "cpu memory pids")
    slice_ = v2_group(top / "user.slice", "memory pids")
    v2_group(slice_ / "session.scope", "")
    proc = machine(tmp_path, [("/", top, "cgroup2", "rw")], "0::/user.slice/session.scope\n")
    found = Parents.find(proc)
    assert found.is_v2 and found.folders == {"memory": slice_, "pids": slice_}


def test_version_1_takes_our_own_group_of_each_controller(tmp_path: Path) -> None:
    memory, pids = tmp_path / "memory", tmp_path / "pids"
    (memory / "jobs" / "42").mkdir(parents=True)
    pids.mkdir()
    mounts = [("/", memory, "cgroup", "rw,memory"), ("/", pids, "cgroup", "rw,pids")]
    mounts.append(("/", v2_group(tmp_path / "unified", ""), "cgroup2", "rw"))
    found = Parents.find(machine(tmp_path, mounts, "4:memory:/jobs/42\n3:pids:/\n1:cpu,cpuacct:/\n0::/\n"))
    assert not found.is_v2 and found.folders == {"memory": memory / "jobs" / "42", "pids": pids}


def test_a_container_sees_the_part_that_is_its_own(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    (memory / "inner").mkdir(parents=True)
    mounts = [("/docker/abc", memory, "cgroup", "rw,memory")]
    assert Parents.find(machine(tmp_path, mounts, "4:memory:/docker/abc/inner\n")).folders["memory"] == memory / "inner"
    assert Parents.find(machine(tmp_path, mounts, "4:memory:/elsewhere\n")).folders["memory"] == memory


def test_a_machine_without_cgroups_has_none(tmp_path: Path) -> None:
    assert Parents.find(machine(tmp_path, [], "")).folders == {}
    assert Parents.find(tmp_path / "nowhere").folders == {}


def test_a_sweep_counts_only_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "REMOVE_S", 0.05)
    (tmp_path / "agentrl-box-00000000-1-1-1-kept" / "held").mkdir(parents=True)
    (tmp_path / "agentrl-box-00000000-1-1-1-free").mkdir()
    assert Parents(folders={"memory": tmp_path, "pids": tmp_path}, is_v2=True).sweep() == 1
