"""The error vocabulary. Every message names what is wrong, where, and what to do.

Plugin code raises plain Python errors; the AgentLoop attributes them once, at the boundary, to a StopReason
(see `RolloutFault`). Elsewhere errors propagate to the command line, which prints one line and exits.
"""

from __future__ import annotations

from enum import StrEnum

from agentrl.types import StopReason


class AgentRLError(Exception):
    """Base of all errors that a user can act on. Exit code 1."""

    exit_code = 1


class ConfigError(AgentRLError):
    """A key, a value or a combination that can't be right. Exit code 2."""

    exit_code = 2


class PluginError(ConfigError):
    """An environment, tool or sandbox that isn't there or doesn't load."""


class ReplayError(ConfigError):
    """What was stored can't be replayed: an id that isn't there, or something that it was made with is gone."""


class ModelError(AgentRLError):
    """A model or tokenizer that isn't there or can't be trained."""


class TemplateError(ModelError):
    """A chat template that can't be rendered turn by turn without changing what was sampled."""


class StoreError(AgentRLError):
    """A database or a run's file that can't be used, or a record that can't be read."""


class NotStored(StoreError):
    """An id that isn't in the database, or isn't any more."""


class DamagedRecord(StoreError):
    """A record that isn't as it was written, so it can't be read; the others can."""


class LeaseLost(StoreError):
    """The group was given to another worker; this one may no longer write to it."""


class ExchangeError(AgentRLError):
    """Nothing to export, or a file whose examples don't fit."""


class RowError(AgentRLError):
    """Lengths that don't agree: the Row is refused by name of trajectory and turn (T5)."""


class PublishError(AgentRLError):
    """An engine that didn't prove that it holds the published weights (V2)."""


class TrainingError(AgentRLError):
    """Training can't go on: a rank has died, or nothing is left to imitate."""


class BadUpdates(TrainingError):
    """Too many updates in a row were not finite and skipped; the weights are the last good ones (G3)."""


class FaultShareError(AgentRLError):
    """Too many rollouts ended in a fault: their groups would be dropped, and the run would learn from what is left."""


class RolloutFault(AgentRLError):
    """A fault that ends one rollout, as data. `stop_reason` says which ending it is."""

    stop_reason = StopReason.ENV_ERROR

    @classmethod
    def of(cls, stop_reason: StopReason, message: str) -> RolloutFault:
        """A fault with the given ending."""
        fault = cls(message)
        fault.stop_reason = stop_reason
        return fault


class EngineFault(StrEnum):
    """What went wrong between a client and an engine."""

    CONNECTION = "connection"
    """Refused, reset, or cut before the whole reply was there."""
    TIMEOUT = "timeout"
    BUSY = "busy"
    """HTTP 429."""
    SERVER = "server"
    """HTTP 5xx."""
    GARBAGE = "garbage"
    """A reply that is no JSON object, or not of the expected form."""
    REFUSED = "refused"
    """Any other HTTP status: the request, the key or the server's configuration is wrong."""
    NO_IDS = "no_ids"
    """A reply whose ids or versions can't be recorded."""
    BAD_LOGPROBS = "bad_logprobs"
    """Missing, too few, NaN, null, infinite, or a stand-in for minus infinity."""
    UNPROVED = "unproved"
    """A reply from weights that the engine hasn't proved to hold (V2)."""
    MIXED = "mixed"
    """Weights changed while it was sampled, and the server can't say which ids came from which."""
    ABORTED = "aborted"
    """Cut by the server again and again without a single id."""
    OTHER = "other"

    @property
    def is_transient(self) -> bool:
        """The same request may well succeed a moment later."""
        return self in _TRANSIENT


_TRANSIENT = frozenset(
    {
        EngineFault.CONNECTION,
        EngineFault.TIMEOUT,
        EngineFault.BUSY,
        EngineFault.SERVER,
        EngineFault.GARBAGE,
        EngineFault.MIXED,
    }
)


class EngineError(RolloutFault):
    """The engine refused, failed or returned something that can't be recorded."""

    stop_reason = StopReason.ENGINE_ERROR

    def __init__(self, message: str, kind: EngineFault = EngineFault.OTHER, retry_after_s: float | None = None) -> None:
        """`retry_after_s`: how long the server asks to be left alone."""
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s


class ContextOverflow(EngineError):
    """The engine says that prompt and reply don't fit its window: the agent's doing, not a fault."""

    stop_reason = StopReason.CONTEXT_OVERFLOW


class SandboxFault(StrEnum):
    """Why there is no box, or no box any more."""

    UNAVAILABLE = "unavailable"
    """The backend can't start boxes on this machine: a program, a daemon or a permission is missing."""
    IMAGE = "image"
    """The image isn't there, or can't be pulled."""
    START = "start"
    """A box didn't get ready in its time."""
    DIED = "died"
    """It ended while it was in use."""
    HOST_FULL = "host_full"
    """This machine's disk, memory, processes or networks are used up, not the box's own share."""
    CHANNEL = "channel"
    """It is there, but doesn't answer as it should."""


class SandboxError(RolloutFault):
    """There is no box, or none any more. A command that fails is a result, not this."""

    stop_reason = StopReason.SANDBOX_ERROR

    def __init__(self, message: str, kind: SandboxFault = SandboxFault.DIED) -> None:
        """`message` names the box and what to do."""
        super().__init__(message)
        self.kind = kind


class ToolFault(RolloutFault):
    """Tools can't be run any more in this process (too many abandoned threads)."""

    stop_reason = StopReason.TOOL_ERROR
