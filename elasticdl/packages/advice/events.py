"""Kinds of events of this package."""

from __future__ import annotations

from typing import Annotated, ClassVar

from elasticdl.observe.kind import Kind


class Anomaly(Kind):
    """Something is unusual, and was not at the look before."""

    event: ClassVar[str] = "anomaly"
    what: Annotated[
        str,
        "straggler, rising loss, diverging loss, loss is no number, busy ps replica, "
        "full ps replica, skewed ps replicas",
    ]
    process: Annotated[str, "name of the process; empty if it is about the job"]
    advice: Annotated[str, "what to do, for people; also in `text`"]
    stage: Annotated[str, "of a straggler: the stage that takes longer than that of others"] = ""


class Overfitting(Kind):
    """A metric of validation data gets worse while training data are learnt better; said once."""

    event: ClassVar[str] = "overfitting"
    metric: Annotated[str, "name"]
    mode: Annotated[str, "max or min: which is better"]
    best: Annotated[float, "its value in the best evaluation"]
    value: Annotated[float, "its value now"]
