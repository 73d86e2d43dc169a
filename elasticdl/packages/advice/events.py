"""Kinds of events of this package."""

from __future__ import annotations

from typing import Annotated, ClassVar

from elasticdl.observe.kind import Kind


class Anomaly(Kind):
    """Something is unusual that was not unusual at the last check."""

    event: ClassVar[str] = "anomaly"
    what: Annotated[
        str,
        "straggler, rising loss, diverging loss, loss is no number, busy ps replica, "
        "full ps replica, skewed ps replicas",
    ]
    process: Annotated[str, "name of the process; empty if it is about the whole job"]
    advice: Annotated[str, "what to do, for people; also in `text`"]
    stage: Annotated[str, "for a straggler: the stage that takes longer than in others"] = ""


class Overfitting(Kind):
    """A validation metric gets worse while training gets better. The event is written once."""

    event: ClassVar[str] = "overfitting"
    metric: Annotated[str, "name of the metric"]
    mode: Annotated[str, "max or min: which is better"]
    best: Annotated[float, "its value in the best evaluation"]
    value: Annotated[float, "its value in the newest evaluation"]
