"""Runs in a box, alone: prints the lines below a path that match a regular expression, as ripgrep would."""

from __future__ import annotations

import fnmatch
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_FILE_BYTES = 1 << 26


def main(pattern: str, top: str, glob: str) -> int:
    """0, or 2 with the reason on stderr."""
    try:
        wanted = re.compile(pattern.encode("utf-8", "surrogateescape"))
    except re.error as error:
        sys.stderr.write(f"regex parse error: {error}\n")
        return 2
    if not os.path.exists(top):
        sys.stderr.write(f"{top}: No such file or directory\n")
        return 2
    for path in [top] if os.path.isfile(top) else files(top):
        if not glob or fnmatch.fnmatch(os.path.basename(path), glob):
            show_matches(path, wanted)
    return 0


def files(folder: str) -> Iterator[str]:
    """In the order of their paths; links are not followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: os.fsencode(entry.name))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name != ".git":
                yield from files(entry.path)
        elif entry.is_file(follow_symlinks=False):
            yield entry.path


def show_matches(path: str, wanted: re.Pattern[bytes]) -> None:
    """Binary files, and those that can't be read, are left out."""
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except OSError:
        return
    if b"\0" in content:
        return
    for number, line in enumerate(content.split(b"\n"), 1):
        if wanted.search(line.rstrip(b"\r")):
            sys.stdout.buffer.write(b"%s:%d:%s\n" % (os.fsencode(path), number, line))


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except BrokenPipeError:  # enough was seen
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
