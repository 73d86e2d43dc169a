"""Kinds of events of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from elasticdl.observe.kind import Kind
from elasticdl.observe.kinds import Process


class WorldClosed(Kind):
    """Workers have agreed on who reduces together."""

    event: ClassVar[str] = "world"
    world: Annotated[int, "its number"]
    workers: Annotated[Sequence[int], "its members by rank"]
    behind: Annotated[Sequence[int], "those that are given the parameters of the first"]


class WorldRestored(Kind):
    """All workers of a job without ps replicas were lost; another one goes on."""

    event: ClassVar[str] = "world restored"
    process: Process
    version: Annotated[int, "model version that it was restored to; 0 if it began from nothing"]
    tasks: Annotated[int, "tasks that it lacked, which are trained again"]
    records: Annotated[int, "records in these"]
    seconds: Annotated[float, "seconds from the loss until then"]
