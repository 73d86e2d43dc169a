"""The phases of a job."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """A phase of the job. The phases stand in the order in which a job goes through them."""

    PENDING = "pending"
    TRAINING = "training"
    PREDICTING = "predicting"
    EVALUATING = "evaluating"
    EXPORTING = "exporting"
    CHECKPOINTING = "checkpointing"
    AUDITING = "auditing"
    FINISHED = "finished"
    FAILED = "failed"


ORDER = list(Phase)

ENDED = frozenset({Phase.FINISHED, Phase.FAILED})

CLOSING = frozenset({Phase.CHECKPOINTING, Phase.AUDITING})
"""The replicas are asked for something. Workers stay: a replica that is lost needs a replay."""
