"""pytest as one file, for boxes whose Python has none: made from what is installed here, pure Python alone."""

from __future__ import annotations

import importlib.util
import io
import py_compile
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path

from agentrl.errors import SandboxError, SandboxFault

MODULES = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
LEFT_OUT = ("pygments/lexers/", "pygments/styles/", "pygments/formatters/", "packaging/licenses/")
KEPT = ("__init__", "_mapping", "python", "special", "diff", "default", "terminal")
"""Of pygments what pytest colours with."""
STAMP = (2000, 1, 1, 0, 0, 0)


@lru_cache(maxsize=1)
def pytest_bundle() -> bytes:
    """A zip file that can stand on `sys.path`, with code compiled for this Python beside the sources.

    Raises SandboxError where pytest isn't installed here.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive, tempfile.TemporaryDirectory() as folder:
        for module in MODULES:
            for name, path in _files(module):
                # Another version of Python compiles the sources; this one seldom reads them.
                archive.writestr(zipfile.ZipInfo(name, STAMP), path.read_bytes(), zipfile.ZIP_DEFLATED)
                compiled = Path(folder, "compiled")
                py_compile.compile(
                    str(path), str(compiled), dfile=name, doraise=True,
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )  # fmt: skip
                archive.writestr(zipfile.ZipInfo(name + "c", STAMP), compiled.read_bytes())
    return content.getvalue()


def _files(module: str) -> list[tuple[str, Path]]:
    """(name in the archive, file) of each source of a module or package."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise SandboxError(
            f"the box's Python has no pytest, and here there is no {module} to give it: "
            "pip install 'agentrl[swe_bench]'", SandboxFault.UNAVAILABLE,
        )  # fmt: skip
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        return [(origin.name, origin)]
    files = [(path.relative_to(origin.parent.parent).as_posix(), path) for path in sorted(origin.parent.rglob("*.py"))]
    return [(name, path) for name, path in files if not name.startswith(LEFT_OUT) or path.stem in KEPT]
