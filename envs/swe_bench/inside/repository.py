"""Runs in a box, alone: what is done to the repository there, with git.

Reads one JSON object from stdin, whose `do` names the work; writes a line of JSON, and after it bytes where the work
gives any. Git never reads a configuration, hook or attribute of whoever worked in the box: the program, its variables
and the folder with the objects are ours.

Exit code 3: there is no git; 4: git said no, and stderr says why.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

NO_GIT, REFUSED = 3, 4
DATE = "2000-01-01T00:00:00+0000"
WHO = {"NAME": "agentrl", "EMAIL": "agentrl@localhost", "DATE": DATE}
SETTINGS = {
    "core.fileMode": "true",
    "core.symlinks": "true",
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.fsmonitor": "false",
    "core.quotePath": "true",
    "core.bigFileThreshold": "512m",  # above it a file is binary
    "gc.auto": "0",
}
BYTE_FOR_BYTE = "* -text -ident !eol !filter !working-tree-encoding !diff !merge !whitespace\n"
"""Attributes: what the repository's own say about line ends, filters and diffs changes no byte of a patch."""
NEVER_TAKEN = "__pycache__/\n*.py[co]\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n.hypothesis/\nagentrl-pytest.pth\n"
"""What tests leave behind, and what we give to a Python without pytest: it may live in the repository's folder."""
MAX_CHANGED_BYTES = 1 << 26
"""Of the files that changed, before a diff is made of them."""
SYMLINK = "120000"


class Refused(Exception):
    """What git said."""


class TooLarge(Exception):
    """More than a patch may hold."""


class Git:
    """One repository's git: `folder` holds the objects, the files are those of the current folder, or `files`."""

    def __init__(self, folder: str, *, index: str | None = None, files: str = ".") -> None:
        self.folder = os.path.abspath(folder)
        self.index = os.path.abspath(index) if index else os.path.join(self.folder, "index")
        self.files = os.path.abspath(files)

    def __call__(self, *words: str, stdin: bytes = b"", max_bytes: int = 1 << 30) -> bytes:
        """What it prints. Raises Refused, TooLarge."""
        settings = [word for name, value in SETTINGS.items() for word in ("-c", name + "=" + value)]
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                [program(), *settings, *words], env=self._variables(), cwd=self.files,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )  # fmt: skip
            printed, _ = process.communicate(stdin)
            if process.returncode != 0:
                errors.seek(0)
                said = errors.read(2000).decode("utf-8", "replace").strip()
                raise Refused(f"git {words[0]}: {said or process.returncode}")
        if len(printed) > max_bytes:
            raise TooLarge(f"the patch has {len(printed)} bytes")
        return printed

    def text(self, *words: str, stdin: bytes = b"") -> str:
        return os.fsdecode(self(*words, stdin=stdin)).strip()

    def paths(self, *words: str) -> list[str]:
        """Of a command with -z."""
        return [os.fsdecode(path) for path in self(*words).split(b"\0") if path]

    def take(self, paths: Iterable[str], *words: str) -> None:
        """Bring the index up to date for these, ignored or not."""
        self("update-index", "-z", *words, "--stdin", stdin=zeros(paths))

    def set_entries(self, entries: dict[str, tuple[str, str] | None]) -> None:
        """path → (mode, object), or None: it isn't there."""
        ordered = sorted(entries.items(), key=lambda item: item[1] is not None)  # first what makes room
        lines = ["%s %s\t%s" % ((entry or ("0", "0" * 40)) + (path,)) for path, entry in ordered]
        self("update-index", "-z", "--index-info", stdin=zeros(lines))

    def entries(self, tree: str) -> dict[str, tuple[str, str]]:
        """path → (mode, object) of all files in a tree."""
        found = {}
        for line in self.paths("ls-tree", "-r", "-z", "--full-tree", tree):
            words, _, path = line.partition("\t")
            mode, _, name = words.split()
            found[path] = (mode, name)
        return found

    def _variables(self) -> dict[str, str]:
        fixed = {"GIT_DIR": self.folder, "GIT_WORK_TREE": self.files, "GIT_INDEX_FILE": self.index}
        fixed.update(GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL="/dev/null", GIT_ATTR_NOSYSTEM="1")
        fixed.update(HOME="/nonexistent", XDG_CONFIG_HOME="/nonexistent", GIT_TERMINAL_PROMPT="0", LC_ALL="C")
        fixed.update({f"GIT_{role}_{what}": WHO[what] for role in ("AUTHOR", "COMMITTER") for what in WHO})
        return dict(fixed, PATH=os.environ.get("PATH", os.defpath), GIT_LITERAL_PATHSPECS="1")


def program() -> str:
    found = shutil.which("git")
    if found is None:
        sys.stderr.write("there is no git in the box\n")
        sys.exit(NO_GIT)
    return found


def zeros(words: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(word) + b"\0" for word in words)


# ------------------------------------------------------------------------------------------ before the agent


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Set the tree to the base commit, and apply the patch that belongs to the set-up."""
    if request["base_commit"] and os.path.lexists(".git"):
        set_to(Git(git_folder()), request["base_commit"])
    if request["setup_patch"]:
        with tempfile.TemporaryDirectory() as folder:
            apart = Git(folder)
            apart("init", "-q", "--template=")
            apart("apply", "--whitespace=nowarn", "-", stdin=base64.b64decode(request["setup_patch"]))
    return {}


def set_to(git: Git, commit: str) -> None:
    """Where the image already stands there, what is changed in it belongs to its set-up and stays."""
    wanted = git.text("rev-parse", "--verify", "--end-of-options", commit + "^{commit}")
    history = git.text("log", "-2", "--format=%H %s", "HEAD").split("\n")
    is_setup_on_top = len(history) > 1 and history[0].endswith(" SWE-bench") and history[1].startswith(wanted)
    if not history[0].startswith(wanted) and not is_setup_on_top:
        git("checkout", "-q", "--force", "--detach", wanted)


def git_folder() -> str:
    """Of the tree as it is; `.git` may be a file that names it."""
    if os.path.isdir(".git"):
        return ".git"
    with open(".git", encoding="utf-8", errors="surrogateescape") as file:
        return file.read().strip()[len("gitdir: ") :]


def commit(request: dict[str, Any]) -> dict[str, Any]:
    """Start, and make the tree the one commit of a new repository. All that was known of its history is gone then.

    Files that git ignores stay out of it as they are, and are told. `keep_hidden`: the hidden files are objects, in
    `full`, also when they are taken out of the tree; never so in a box with an agent.
    """
    start(request)
    tracked = files_of_old_repository() + request["test_files"]
    if not request["keep_hidden"]:
        remove_files(request["hidden_files"])
    remove_repositories()
    git = new_repository()
    git("add", "-A")
    git.take([path for path in tracked if is_file(path)], "--add")
    full = git.text("write-tree")
    if request["keep_hidden"]:
        remove_files(request["hidden_files"])
        git.take([path for path in request["hidden_files"] if path in set(git.paths("ls-files", "-z"))], "--remove")
    name = git.text("commit-tree", git.text("write-tree"), stdin=b"The repository as it is\n")
    git("update-ref", "refs/heads/main", name)
    git("update-index", "-q", "--refresh")
    shutil.rmtree(".git/logs", ignore_errors=True)
    if request["copy"]:
        shutil.copytree(".git", request["copy"], copy_function=copy_of)
    ignored = git.paths("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    return {"commit": name, "full": full, "ignored": ignored}


def files_of_old_repository() -> list[str]:
    """What it tracks is taken, also where it is ignored by now."""
    try:
        return Git(git_folder()).paths("ls-files", "-z")
    except (OSError, Refused):
        return []


def remove_files(paths: Iterable[str]) -> None:
    """And what Python compiled of them."""
    for path in paths:
        folder, name = os.path.split(path)
        cache = os.path.join(folder, "__pycache__")
        stem = os.path.splitext(name)[0] + "."
        compiled = [os.path.join(cache, each) for each in os.listdir(cache)] if os.path.isdir(cache) else []
        for each in [path, *(each for each in compiled if os.path.basename(each).startswith(stem))]:
            with contextlib.suppress(FileNotFoundError):
                os.remove(each)


def remove_repositories() -> None:
    """The tree's own and those of submodules, with all that they know."""
    for folder, folders, names in os.walk("."):
        if ".git" in folders:
            folders.remove(".git")
            shutil.rmtree(os.path.join(folder, ".git"))
        if ".git" in names or os.path.islink(os.path.join(folder, ".git")):
            os.remove(os.path.join(folder, ".git"))


def new_repository() -> Git:
    git = Git(".git")
    git("init", "-q", "--template=")
    git("symbolic-ref", "HEAD", "refs/heads/main")
    os.makedirs(".git/info", exist_ok=True)
    with open(".git/info/attributes", "w") as file:
        file.write(BYTE_FOR_BYTE)
    with open(".git/info/exclude", "w") as file:
        file.write(NEVER_TAKEN)
    for name, value in {"core.autocrlf": "false", "user.name": "agent", "user.email": "agent@localhost"}.items():
        git("config", name, value)
    return git


def copy_of(source: str, target: str) -> None:
    """Objects never change, so a link does."""
    if source.startswith(".git/objects/"):
        with contextlib.suppress(OSError):  # on another file system
            os.link(source, target)
            return
    shutil.copy2(source, target)


def is_file(path: str) -> bool:
    return os.path.islink(path) or os.path.isfile(path)


# ------------------------------------------------------------------------------------------ after the agent


def changes(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The patch from the commit to the tree as it is; {"problem": …} where none can be taken."""
    git = Git(request["copy"])
    if not has(git, request["commit"]):  # the agent removed our copy
        git = Git(".git", index=tempfile.mkdtemp() + "/index")
        if not has(git, request["commit"]):
            return {"problem": "what the repository was like is gone: .git was removed, and our copy of it"}, b""
        git("read-tree", request["commit"])
    try:
        git.take(changed_files(git, request["ignored"]), "--add", "--remove", "--replace")
        words = ("--cached", "-p", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv")
        patch = git("diff-index", *words, "--no-color", request["commit"], max_bytes=request["max_bytes"])
    except TooLarge as error:
        return {"problem": f"too large: {error}", "too_large": True}, b""
    except Refused as error:
        return {"problem": f"no patch can be made: {error}"}, b""
    return {}, patch


def has(git: Git, commit: str) -> bool:
    try:
        git("cat-file", "-e", commit + "^{tree}")
    except Refused:
        return False
    return True


def changed_files(git: Git, ignored: list[str]) -> list[str]:
    """Changed, new and removed ones; those below a repository that the agent made, too. Raises TooLarge."""
    known = {path for path in ignored if not path.endswith("/")}
    folders = tuple(path for path in ignored if path.endswith("/"))
    found = []
    for path in git.paths("ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard"):
        found += files_below(path) if path.endswith("/") else [path]
    kept = [path for path in dict.fromkeys(found) if path not in known and not path.startswith(folders)]
    kept = [path for path in kept if not os.path.lexists(path) or is_file(path) or os.path.isdir(path)]  # no pipes
    num_bytes = sum(os.lstat(path).st_size for path in kept if is_file(path))
    if num_bytes > MAX_CHANGED_BYTES:
        raise TooLarge(f"the files that changed have {num_bytes} bytes")
    return kept


def files_below(top: str) -> list[str]:
    found = []
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__")]
        linked = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        found += [os.path.join(folder, name) for name in names + linked if name != ".git"]
    return found


# ------------------------------------------------------------------------------------------ before the tests

APPLIED = "agentrl-applied"
"""The index with the agent's patch, in the folder of git: the files themselves aren't touched before `finish`."""


def apply(request: dict[str, Any]) -> dict[str, Any]:
    """Try to apply a patch, in an index alone. Tells how it went, what it changes, and which files there were."""
    patch = base64.b64decode(request["patch"])
    git = Git(".git", index=".git/" + APPLIED)
    why = []
    for name, attempt in (("git apply", plainly), ("git apply --3way", by_merging), ("patch", by_patch)):
        git("read-tree", "HEAD")
        try:
            attempt(git, patch)
            git("write-tree")
        except Refused as error:
            why.append(str(error))
            continue
        return {
            "applied_by": name,
            "changed": changed(git),
            "files": git.paths("ls-tree", "-rz", "--name-only", "HEAD"),
        }
    return {"applied_by": None, "why": why[0]}


def plainly(git: Git, patch: bytes) -> None:
    git("apply", "--cached", "--whitespace=nowarn", "-", stdin=patch)


def by_merging(git: Git, patch: bytes) -> None:
    git("apply", "--cached", "--3way", "--whitespace=nowarn", "-", stdin=patch)


def by_patch(git: Git, patch: bytes) -> None:
    """In a copy of the tracked files, so that whatever it writes is seen. Never in reverse."""
    tool = shutil.which("patch")
    if tool is None:
        raise Refused("there is no patch in the box")
    with tempfile.TemporaryDirectory() as folder:
        git("checkout-index", "-a", "--prefix=" + folder + "/")
        words = [tool, "-p1", "--batch", "--forward", "--fuzz=5", "--no-backup-if-mismatch", "--reject-file=-"]
        ran = subprocess.run(words, input=patch, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if ran.returncode != 0:
            raise Refused("patch: " + ran.stdout.decode("utf-8", "replace").strip()[-1000:])
        Git(".git", index=git.index, files=folder)("add", "-A", "--force", ".")


def changed(git: Git) -> list[dict[str, Any]]:
    """Path and mode of what the index has otherwise than the commit; of a link where it leads."""
    words = git.paths("diff-index", "--cached", "-z", "--no-renames", "--full-index", "HEAD")
    found = []
    for line, path in zip(words[::2], words[1::2]):  # noqa: B905 - Python 3.7
        _, mode, _, name, status = line.split()
        leads_to = os.fsdecode(git("cat-file", "blob", name)) if mode == SYMLINK else None
        found.append({"path": path, "status": status, "leads_to": leads_to})
    return found


def finish(request: dict[str, Any]) -> dict[str, Any]:
    """Take back what the patch may not change, restore the test files, apply the test patch; then write the files."""
    git = Git(".git", index=".git/" + APPLIED)
    before, full = git.entries("HEAD"), git.entries(request["full"])
    entries = {path: before.get(path) for path in request["undone"]}
    entries.update({path: full.get(path) for path in request["test_files"]})
    git.set_entries(entries)
    if request["test_patch"]:
        plainly(git, base64.b64decode(request["test_patch"]))
    tree = git.text("write-tree")
    Git(".git")("read-tree", "-m", "-u", "HEAD", tree)
    return {}


def main() -> None:
    works = {"start": start, "commit": commit, "changes": changes, "apply": apply, "finish": finish}
    request = json.load(sys.stdin)
    try:
        told: Any = works[request["do"]](request)
    except (Refused, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(REFUSED)
    values, content = told if isinstance(told, tuple) else (told, b"")
    sys.stdout.buffer.write(json.dumps(values).encode() + b"\n" + content)


if __name__ == "__main__":
    main()
