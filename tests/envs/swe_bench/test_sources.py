"""Trees, archives and bundles → folders for boxes: made once, whole, and never another's content."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentrl.envs.swe_bench import sources, unpacking
from agentrl.envs.swe_bench.environment import SweBench, SweBenchConfig, make_task, swe_task
from agentrl.envs.swe_bench.task import Source, SweTask
from agentrl.errors import ConfigError, SandboxError, SandboxFault
from agentrl.types import Task

CLEAN = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
CLEAN |= {f"GIT_{role}_{part}": "a@b" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "shapes"
    for name in ("shapes/__pycache__", ".git", "empty"):
        (folder / name).mkdir(parents=True)
    (folder / "shapes/area.py").write_bytes(b"def square(side):\r\n    return side * side\r\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link.py").symlink_to("shapes/area.py")
    (folder / "shapes/__pycache__/area.pyc").write_bytes(b"\0")
    (folder / ".git/index").write_bytes(b"\0")
    return folder


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, env=CLEAN, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Two commits."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for text in ("one", "two"):
        (folder / "file").write_text(text)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", text)
    git(folder, "bundle", "create", "--quiet", "../repository.bundle", "HEAD", "--all")
    git(folder, "bundle", "create", "--quiet", "../headless.bundle", "main")
    return tmp_path / "repository.bundle"


def archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Source:
    with tarfile.open(path, "w:gz") as file:
        for member, content in members:
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return Source(kind="archive", path=str(path))


def member(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def task(source: Source) -> SweTask:
    return SweTask(id="shapes-1", format="agentrl", problem_statement="It is wrong.", source=source)


def source_of(task: Task) -> Source:
    source = swe_task(task).source
    assert source is not None
    return source


def refused(source: Source) -> str:
    with pytest.raises(SandboxError) as error:
        sources.folder_of(source)
    assert error.value.kind is SandboxFault.IMAGE
    return str(error.value)


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_a_tree_is_copied_so_that_no_box_sees_it_change(tree: Path, home: Path) -> None:
    folder = Path(sources.folder_of(Source(kind="tree", path=str(tree))))
    assert folder.is_relative_to(home)
    (tree / "shapes/area.py").write_text("changed")
    assert (folder / "shapes/area.py").read_bytes() == b"def square(side):\r\n    return side * side\r\n"
    assert names(folder) == {"shapes", "shapes/area.py", "run.sh", "link.py", "empty"}
    assert os.readlink(folder / "link.py") == "shapes/area.py"
    assert Path(sources.folder_of(Source(kind="tree", path=str(tree)))) != folder


def test_what_git_and_python_keep_beside_the_code_changes_no_hash(tree: Path) -> None:
    before = unpacking.tree_hash(tree)
    (tree / ".git/index").write_bytes(b"\1")
    (tree / "shapes/__pycache__/area.pyc").unlink()
    os.utime(tree / "run.sh", (0, 0))
    assert unpacking.tree_hash(tree) == before
    (tree / "run.sh").chmod(0o644)
    assert unpacking.tree_hash(tree) != before


def test_rights_are_the_same_with_any_umask(tree: Path) -> None:
    (tree / "shapes/area.py").chmod(0o600)
    umask = os.umask(0o077)
    try:
        folder = Path(sources.folder_of(Source(kind="tree", path=str(tree))))
    finally:
        os.umask(umask)
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in (".", "shapes", "shapes/area.py", "run.sh")}
    assert modes == {".": 0o755, "shapes": 0o755, "shapes/area.py": 0o644, "run.sh": 0o755}


def test_an_archive_without_its_top_folder(tmp_path: Path) -> None:
    link = member("shapes-1.0/hard", type=tarfile.LNKTYPE, linkname="shapes-1.0/a")
    source = archive(
        tmp_path / "a.tar.gz", (member("shapes-1.0/a"), b"a"), (member("shapes-1.0/b/c"), b"c"), (link, b"")
    )
    folder = Path(sources.folder_of(source))
    assert names(folder) == {"a", "b", "b/c", "hard"} and (folder / "hard").read_bytes() == b"a"


def test_an_archive_with_several_entries_at_the_top(tmp_path: Path) -> None:
    source = archive(tmp_path / "a.tar.gz", (member("a"), b"a"), (member("b/c"), b"c"))
    assert names(Path(sources.folder_of(source))) == {"a", "b", "b/c"}


@pytest.mark.parametrize(
    "bad",
    [
        member("top/../../out"),
        member("top/link", type=tarfile.SYMTYPE, linkname="../../../out"),
        member("top/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        member("top/null", type=tarfile.CHRTYPE),
    ],
    ids=["leads out", "link leads out", "link to the machine", "device"],
)
def test_an_archive_that_leads_out_is_refused_and_leaves_nothing(bad: tarfile.TarInfo, tmp_path: Path) -> None:
    source = archive(tmp_path / "a.tar.gz", (member("top/a"), b"a"), (bad, b""))
    assert "no tar file that can be unpacked" in refused(source)
    assert list(sources.cache().iterdir()) == []


def test_what_is_too_large_is_refused(tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MAX_BYTES", 5)
    assert "more than 5 bytes" in refused(archive(tmp_path / "a.tar.gz", (member("a"), b"123456")))
    monkeypatch.setattr(unpacking, "MAX_FILES", 3)
    assert "more than 3 files" in refused(Source(kind="tree", path=str(tree)))


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"PK\3\4")
    assert "no tar file" in refused(Source(kind="archive", path=str(tmp_path / "a.tar.gz")))


def test_a_bundle_has_all_its_commits_and_nobodys_settings(
    bundle: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "hooks").mkdir()
    (home / "hooks/post-checkout").write_text(f"#!/bin/sh\ntouch {home}/ran\n")
    (home / "hooks/post-checkout").chmod(0o755)
    (home / ".gitconfig").write_text(f"[core]\n\thooksPath = {home}/hooks\n")
    monkeypatch.setenv("GIT_DIR", str(home))
    folder = Path(sources.folder_of(Source(kind="bundle", path=str(bundle))))
    assert (folder / "file").read_text() == "two" and not (home / "ran").exists()
    assert git(folder, "show", "HEAD~1:file") == "one"
    assert git(folder, "remote") == "" and str(bundle) not in (folder / ".git/config").read_text()


def test_a_bundle_without_git_or_without_a_head(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no HEAD" in refused(Source(kind="bundle", path=str(bundle.with_name("headless.bundle"))))
    bundle.with_name("broken.bundle").write_bytes(b"oops")
    assert "git: " in refused(Source(kind="bundle", path=str(bundle.with_name("broken.bundle"))))
    monkeypatch.setenv("PATH", "/nowhere")
    assert "apt-get install git" in refused(Source(kind="bundle", path=str(bundle)))


def test_another_content_than_the_tasks_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    first = sources.with_hash(task(archive(path, (member("top/a"), b"first"))))
    assert first.source and len(first.source.sha256) == 64
    archive(path, (member("top/a"), b"second, longer"))
    with pytest.raises(ConfigError, match=r"shapes-1: .*its content has changed"):
        sources.with_hash(first)
    assert "its content has changed" in refused(first.source)
    path.unlink()
    assert "no such file" in refused(first.source)


def test_what_was_made_once_serves_when_the_original_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    first = sources.with_hash(task(archive(path, (member("top/a"), b"first")))).source
    assert first is not None
    folder = sources.folder_of(first)
    path.unlink()
    assert sources.folder_of(first) == folder and Path(folder, "a").read_bytes() == b"first"


def stored(source: Source) -> Task:
    return make_task(SweBenchConfig(), task(source), "train")


def test_a_tasks_key_does_not_depend_on_where_its_files_lie(tmp_path: Path, tree: Path) -> None:
    shutil.copytree(tree, tmp_path / "elsewhere", symlinks=True)
    here, there = (stored(Source(kind="tree", path=str(path))) for path in (tree, tmp_path / "elsewhere"))
    assert here.key == there.key and str(tmp_path) not in here.model_dump_json()
    shutil.rmtree(tree)
    assert Path(sources.folder_of(source_of(here)), "shapes/area.py").is_file(), "it is where it was seen last"


def test_a_stored_task_whose_files_are_gone_says_what_to_do(tree: Path) -> None:
    source = source_of(stored(Source(kind="tree", path=str(tree))))
    (tree / "run.sh").unlink()
    assert "its content has changed" in refused(source)
    shutil.rmtree(tree)
    assert f"{tree} (a folder): no such folder; restore it" in refused(source)
    shutil.rmtree(sources.cache())
    assert "load them once: agentrl env validate swe_bench env.path=RECORDS" in refused(source)


def test_what_comes_along_is_found_on_any_machine() -> None:
    first = SweBench.tasks(SweBenchConfig(), "train")[0]
    shutil.rmtree(sources.cache(), ignore_errors=True)  # tasks that were loaded before have written nothing here
    assert Path(sources.folder_of(source_of(first)), ".git").is_dir()


def test_many_make_the_same_at_once(tree: Path, bundle: Path) -> None:
    wanted = [Source(kind="tree", path=str(tree)), Source(kind="bundle", path=str(bundle))] * 4
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(sources.folder_of, wanted))
    assert len(set(folders)) == 2
    assert {str(path) for path in sources.cache().iterdir()} == set(folders), "nothing else is left"


def test_what_a_killed_process_left_is_swept_and_what_is_being_made_is_not(tree: Path) -> None:
    old, new = (sources.cache() / f"{sources.DRAFT}{name}" for name in ("old", "new"))
    for draft in (old, new):
        (draft / "made").mkdir(parents=True)
    os.utime(old, (0, 0))
    sources.folder_of(Source(kind="tree", path=str(tree)))
    assert new.exists() and not old.exists()
