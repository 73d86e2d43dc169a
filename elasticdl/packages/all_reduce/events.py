"""Kinds of events of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from elasticdl.observe.kind import Kind
from elasticdl.observe.kinds import Process


class WorldClosed(Kind):
    """A new world was formed: the workers that reduce their gradients together."""

    event: ClassVar[str] = "world"
    world: Annotated[int, "number of the world"]
    workers: Annotated[Sequence[int], "its workers, in the order of their ranks"]
    behind: Annotated[Sequence[int], "workers that get the parameters of rank 0"]


class WorldRestored(Kind):
    """All workers of an all-reduce job were lost, and a new worker has restored the parameters."""

    event: ClassVar[str] = "world restored"
    process: Process
    version: Annotated[int, "model version that it was restored to; 0 if it began from nothing"]
    tasks: Annotated[int, "number of tasks that are trained again, because it lacks them"]
    records: Annotated[int, "number of records in these tasks"]
    seconds: Annotated[float, "seconds from the loss until the parameters were restored"]
