"""run.log: what a run and the libraries under it had to say, each line with its place in the run.

    2026-11-29 17:03:25,123 WARNING agentrl.rollout.pool [step 3 task held_out-7 sample 1 trajectory 4711…] ended as …

Secrets never get in, and text from models and servers can't forge a line: continuation lines are indented, what isn't
printable is escaped. Tracebacks of errors that the command line shows as one line are here.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import TracebackType
from typing import Self

from agentrl.config import LogConfig
from agentrl.place import here, place_of, place_text
from agentrl.urls import hide_passwords
from agentrl.visible import visible

FILE = "run.log"
MIN_SECRET_CHARACTERS = 4
"""Shorter values would blank out ordinary text, and hide nothing that can't be guessed."""
_BEARER = re.compile(r"(?i)(bearer\s+)\S+")
_PATH_ATTRIBUTE = "agentrl_log"


class RunLog:
    """Takes what is logged while it is open. A context manager; opening writes nothing yet."""

    def __init__(self, folder: Path, run: str, config: LogConfig, secrets: Iterable[str | None] = ()) -> None:
        self.path = folder / FILE
        self._formatter = _Formatter(secrets)
        self._handler = RotatingFileHandler(
            self.path, maxBytes=config.max_file_bytes, backupCount=1, encoding="utf-8", errors="replace", delay=True
        )
        self._handler.setFormatter(self._formatter)
        self._handler.addFilter(_OfRun(run))
        self._level = getattr(logging, config.level.upper())
        self._level_before = logging.NOTSET

    def hide(self, secret: str) -> None:
        """A value that must not get into the file from now on."""
        self._formatter.hide(secret)

    def __enter__(self) -> Self:
        ours = logging.getLogger("agentrl")
        self._level_before = ours.level
        ours.setLevel(self._level)
        logging.getLogger().addHandler(self._handler)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if isinstance(error, Exception):
            logging.getLogger(__name__).error("the run ends here: [%s]", place_text(place_of(error)), exc_info=error)
            error.__dict__.setdefault(_PATH_ATTRIBUTE, self.path)
        logging.getLogger().removeHandler(self._handler)
        logging.getLogger("agentrl").setLevel(self._level_before)
        self._handler.close()


def log_path(error: BaseException | None) -> Path | None:
    """The log that holds an error's traceback, if one does."""
    if error is None:
        return None
    path: Path | None = error.__dict__.get(_PATH_ATTRIBUTE)
    outer = error.__cause__
    return path or (log_path(outer) if isinstance(outer, BaseExceptionGroup) else None)


class _OfRun(logging.Filter):
    """Several runs may be open in one process: each log takes its own, and what belongs to no run."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run

    def filter(self, record: logging.LogRecord) -> bool:
        record.place = place_text({name: value for name, value in here().items() if name != "run"})
        is_ours = record.name == "agentrl" or record.name.startswith("agentrl.")
        return here().get("run", self.run) == self.run and (is_ours or record.levelno >= logging.WARNING)


class _Formatter(logging.Formatter):
    def __init__(self, secrets: Iterable[str | None]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s [%(place)s] %(message)s")
        self._secrets: list[str] = []
        for secret in secrets:
            self.hide(secret or "")

    def hide(self, secret: str) -> None:
        if len(secret) >= MIN_SECRET_CHARACTERS:
            self._secrets.append(secret)

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = _BEARER.sub(r"\1***", hide_passwords(text))
        return visible(text).replace("\n", "\n    ")
