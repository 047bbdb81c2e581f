"""`local`: no box at all. Commands run as this user, on this machine, in a temporary folder.

For trying out an environment on a machine that can't do better, with code that one trusts as one's own.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path, PurePosixPath

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import Preflight, SandboxOptions, SandboxSpec
from agentrl.sandboxes.channel.backend import ChannelBackend
from agentrl.sandboxes.channel.box import ChannelSandbox
from agentrl.sandboxes.channel.process import BoxProcess
from agentrl.sandboxes.channel.program import program
from agentrl.sandboxes.owners import is_orphan, name_of_ours

START_S = 30.0


class LocalOptions(SandboxOptions):
    """Options of `local`."""

    unsafe: bool = False
    """Yes, run the model's code on this machine, as this user."""


class LocalSandbox(ChannelSandbox):
    """A folder, and a server that runs commands in it."""

    def __init__(self, process: BoxProcess, spec: SandboxSpec, folder: Path) -> None:
        super().__init__(process.client, spec, environment={"HOME": str(folder)})
        self._process, self._folder, self._workdir = process, folder, PurePosixPath(spec.workdir)

    def place(self, path: str) -> str:
        """The spec's `workdir` stands for the folder; a command has to use relative paths."""
        asked = self._workdir / path
        inside = asked.is_relative_to(self._workdir)
        return str(self._folder / asked.relative_to(self._workdir) if inside else asked)

    async def end(self) -> None:
        await self._process.stop()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


class LocalBackend(ChannelBackend[LocalSandbox]):
    """Nothing of the spec is enforced but its lifetime."""

    Options = LocalOptions

    async def preflight(self) -> Preflight:
        if isinstance(self.options, LocalOptions) and self.options.unsafe:
            return Preflight(not_enforced=("all of it: commands run on this machine, as this user",), is_closed=False)
        why = "sandbox.backend=local runs what the model writes on this machine, as this user"
        what = "use bubblewrap or docker, or set sandbox.options.unsafe=true if you trust it"
        return Preflight(missing=(f"{why}: {what}",))

    async def open(self, spec: SandboxSpec) -> LocalSandbox:
        state = await self.preflight()
        if state.missing:
            raise SandboxError(state.missing[0], SandboxFault.UNAVAILABLE)
        if spec.image is not None:
            raise SandboxError(f"local has no images, and the task names {spec.image}: use docker", SandboxFault.IMAGE)
        folder = Path(tempfile.mkdtemp(prefix=name_of_ours("")))
        try:
            if spec.base is not None:
                await asyncio.to_thread(shutil.copytree, spec.base, folder, symlinks=True, dirs_exist_ok=True)
            settings = {"workdir": str(folder), "lifetime_s": spec.lifetime_s, "rlimits": {}, "cgroups": []}
            argv = [sys.executable, "-IS", "-c", program(), json.dumps(settings)]
            process = await BoxProcess.start(argv, name=folder.name, timeout_s=START_S)
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            raise
        return LocalSandbox(process, spec, folder)

    async def sweep(self) -> int:
        dead = [path for path in Path(tempfile.gettempdir()).glob("agentrl-box-*") if is_orphan(path.name)]
        for path in dead:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        return sum(not path.exists() for path in dead)
