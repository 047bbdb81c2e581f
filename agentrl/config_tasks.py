"""The section `tasks` of the configuration: which of an environment's tasks are left out."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pydantic import ValidationInfo, model_validator

from agentrl.config_servers import Section
from agentrl.environment import needs_files


class TasksConfig(Section):
    """What is taken of the environment's tasks; see docs/environments.md."""

    exclude: str | None = None
    """A list that `agentrl env validate --write` made: its tasks are left out, by their keys, in every split."""
    exclude_sha256: str | None = None
    """Of that list. Filled in at start and stored with the run, so that a changed list is noticed on resume."""

    @model_validator(mode="after")
    def _fingerprint(self, info: ValidationInfo) -> TasksConfig:
        if not needs_files(info):
            return self
        try:
            content = None if self.exclude is None else Path(self.exclude).expanduser().read_bytes()
        except OSError as error:
            raise ValueError(
                f"exclude={self.exclude}: {error.strerror} (looked from {Path.cwd()}); `agentrl env validate NAME "
                f"--write FILE` makes such a list"
            ) from None
        found = None if content is None else hashlib.sha256(content).hexdigest()
        if self.exclude_sha256 is not None and self.exclude_sha256 != found:
            raise ValueError(
                f"{self.exclude} is another list than exclude_sha256 says; leave that out to take it as is"
            )
        self.exclude_sha256 = found
        return self
