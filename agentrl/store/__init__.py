"""Trajectory ↔ SQL: the store is the queue between rollouts and training, not a log beside them."""

from agentrl.store.find import Selection
from agentrl.store.queue import Queue
from agentrl.store.recorder import SqlRecorder
from agentrl.store.records import (
    ClaimState,
    Endings,
    Lease,
    Reply,
    RunRecord,
    RunStatus,
    StepRecord,
    StepRow,
    StepState,
    StepUse,
    TrajectorySummary,
    VersionRecord,
)
from agentrl.store.store import Store

__all__ = [
    "ClaimState",
    "Endings",
    "Lease",
    "Queue",
    "Reply",
    "RunRecord",
    "RunStatus",
    "Selection",
    "SqlRecorder",
    "StepRecord",
    "StepRow",
    "StepState",
    "StepUse",
    "Store",
    "TrajectorySummary",
    "VersionRecord",
]
