"""The program for a box, as one text for `python3 -c`: nothing of this machine has to be mounted or copied for it."""

from __future__ import annotations

from functools import cache
from importlib import resources

INSIDE = "agentrl.sandboxes.channel.inside"
MODULES = ("closing", "processes", "tree", "commands", "files", "server")
"""Each after those that it imports."""
LOAD = """
import sys, types
for name, text in MODULES.items():
    sys.modules[name] = module = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
module.main()
"""


@cache
def program() -> str:
    """Python 3.7 or later runs it as `python3 -IS -c TEXT SETTINGS`."""
    folder = resources.files(INSIDE)
    texts = {f"{INSIDE}.{name}": folder.joinpath(f"{name}.py").read_text("utf-8") for name in MODULES}
    return f"MODULES = {texts!r}{LOAD}"
