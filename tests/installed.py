"""Fresh virtual environments that share the running interpreter's packages, and packages installed into them.

torch is not installed again: a .pth file leads to where it is. What a test installs goes into the new environment
alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAIN = "import sys; from agentrl.cli import main; sys.exit(main(sys.argv[1:]))"


class FreshVenv:
    """A virtual environment in `folder`; commands run in `place`, which is no checkout."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.python = folder / "venv" / "bin" / "python"
        self.place = folder / "elsewhere"
        self.place.mkdir()
        (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
        shared = [path for path in sys.path if path.endswith("site-packages")]
        (site / "shared.pth").write_text("\n".join([*shared, str(ROOT)]) + "\n")

    def pip_install(self, *what: str) -> None:
        """Install without an index and without dependencies: they are there."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "install",
                   "--quiet", "--no-index", "--no-deps", "--no-build-isolation", *what]  # fmt: skip
        done = subprocess.run(command, cwd=self.place, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr

    def agentrl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The console script, with this environment's packages."""
        return self.run("-c", MAIN, *arguments)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The environment's Python."""
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [str(self.python), *arguments], cwd=self.place, env=variables, capture_output=True, text=True, timeout=300
        )


def build_wheel(source: Path, target: Path) -> Path:
    """Build `source` without network."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = target.glob("*.whl")
    return wheel
