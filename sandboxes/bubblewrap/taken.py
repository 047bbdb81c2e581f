"""What one box takes from this machine, from before its start until after its end."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from agentrl.sandbox import SandboxSpec
from agentrl.sandboxes.bubblewrap.cgroups import Cgroup, Parents
from agentrl.sandboxes.bubblewrap.users import BoxUser
from agentrl.sandboxes.system_calls import filter_program


@dataclass(kw_only=True, slots=True)
class Taken:
    """A cgroup and a user id where they can be had, and files for the start."""

    group: Cgroup | None = None
    user: BoxUser | None = None
    seccomp: int | None = None
    """A file with the filter."""
    lifeline: tuple[int, int] | None = None
    """The ends of a pipe: the server reads, and bwrap holds the other as long as it lives."""
    _files: list[int] = field(default_factory=list)

    @classmethod
    def take(cls, name: str, spec: SandboxSpec, parents: Parents) -> Taken:
        """Raises OSError, and leaves nothing then. Blocks for milliseconds."""
        taken = cls()
        try:
            if parents.folders:
                taken.group = Cgroup.create(name, spec, parents)
            if os.geteuid() == 0:
                taken.user = BoxUser()
            taken.lifeline = os.pipe()
            taken._files += taken.lifeline
            compiled = filter_program()
            if isinstance(compiled, bytes):
                taken.seccomp = _file_of(compiled)
                taken._files.append(taken.seccomp)
        except BaseException:
            taken.give_back()
            raise
        return taken

    @property
    def owner(self) -> int | None:
        """The user id of this box alone."""
        return self.user.number if self.user else None

    @property
    def joins(self) -> list[int]:
        """Files through which a command joins the cgroup."""
        return self.group.joins if self.group else []

    @property
    def inherited(self) -> list[int]:
        """Files that the box's first process must find open."""
        return [*self.joins, *self._files]

    def close_files(self) -> None:
        """The box has its own now. Safe to call twice."""
        while self._files:
            os.close(self._files.pop())

    def give_back(self) -> None:
        """The box has ended, or never was. Safe to call twice; blocks until the cgroup is empty."""
        self.close_files()
        if self.group:
            self.group.remove()
        if self.user:
            self.user.release()


def _file_of(content: bytes) -> int:
    file = os.memfd_create("agentrl-filter")
    os.write(file, content)
    os.lseek(file, 0, os.SEEK_SET)
    return file
