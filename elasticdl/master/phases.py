"""What a job goes through."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What the job is about; in the order in which a job goes through them."""

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

WITH_WORKERS = frozenset(
    {Phase.PENDING, Phase.TRAINING, Phase.PREDICTING, Phase.EVALUATING, Phase.EXPORTING}
)
"""Workers may still be given tasks."""

ENDED = frozenset({Phase.FINISHED, Phase.FAILED})
