"""The section `sandbox` of the configuration: which boxes environments get, and how many at once."""

from __future__ import annotations

from typing import Any

from pydantic import Field, ValidationError, model_validator

from agentrl import plugins
from agentrl.config_servers import Section
from agentrl.sandbox import SandboxOptions, SandboxSpec

AUTO = "auto"


class SandboxConfig(Section):
    """Boxes for the environments that ask for one; see docs/sandboxes.md."""

    backend: str = AUTO
    """bubblewrap, docker, local, or one of a plugin. auto: docker where the task names an image, else bubblewrap."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Of that backend: `sandbox.options.<name>=…`, checked by its own `Options`."""
    max_boxes: int = Field(16, ge=1)
    """At once, those for grading and those started ahead included. Who needs another waits, outside its time limits."""
    max_memory_gib: float | None = Field(None, gt=0)
    """Sum of the boxes' memory limits; None: four fifths of the machine's memory."""
    warm: int = Field(2, ge=0)
    """Boxes of a kind that are started ahead once one was asked for, where there is room that nobody waits for."""
    idle_timeout_s: float = Field(120.0, gt=0)
    """A box that was started ahead and that nobody came for is ended after this."""
    starts_per_second: float = Field(8.0, gt=0)
    start_timeout_s: float = Field(120.0, gt=0)
    """Of one start, and before it of one wait for its image."""
    max_start_tries: int = Field(3, ge=1)
    """Tries of one start where the fault may pass (R3)."""

    def backend_of(self, spec: SandboxSpec) -> str:
        """The name of the backend that starts a box. Never local, unless it is named."""
        if spec.backend != AUTO:
            return spec.backend
        if self.backend != AUTO:
            return self.backend
        return "docker" if spec.image else "bubblewrap"

    def options_of(self, name: str) -> SandboxOptions:
        """Of a backend: `options` where it is the one they are for, else its defaults. Raises PluginError."""
        return plugins.sandbox(name).Options.model_validate(self.options if name == self.backend else {})

    @model_validator(mode="after")
    def _own_options(self) -> SandboxConfig:
        if self.backend == AUTO:
            if self.options:
                raise ValueError("options belong to one backend: name it by sandbox.backend=…, or leave them out")
            return self
        try:
            self.options_of(self.backend)
        except ValidationError as error:
            raise ValueError(self._refused(error)) from None
        return self

    def _refused(self, error: ValidationError) -> str:
        """The first fault of the options, as one line."""
        fault = error.errors(include_url=False)[0]
        key = ".".join(map(str, fault["loc"]))
        if fault["type"] != "extra_forbidden":
            return f"options{f'.{key}' if key else ''}: {fault['msg'].removeprefix('Value error, ')}"
        known = ", ".join(plugins.sandbox(self.backend).Options.model_fields) or "none"
        return f"sandbox.backend={self.backend} has no option {key!r}; it has: {known}"
