"""The kinds of events of streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from elasticdl.observe.kind import Kind


class Unreadable(Kind):
    """Messages could not be read, and were set aside.

    Told at the first one, and each time that their number has doubled.
    """

    event: ClassVar[str] = "unreadable"
    num_messages: Annotated[int, "messages that were set aside so far"]
    partition: Annotated[str, "partition of the last ones"]


class MessagesLate(Kind):
    """Messages came late.

    Told at the first one, and each time that their number has doubled.
    """

    event: ClassVar[str] = "messages late"
    num_messages: Annotated[int, "messages that came late so far"]
    partition: Annotated[str, "partition of the last ones"]


class MessagesGone(Kind):
    """The broker deleted messages before they were read.

    They were left out, as `--on_gap=skip` says. Told at the first one, and each time that their
    number has doubled.
    """

    event: ClassVar[str] = "messages gone"
    num_messages: Annotated[int, "positions that were deleted before they were read so far"]
    partition: Annotated[str, "partition of the last ones"]


class WindowScored(Kind):
    """A window of event time is over: how its messages were scored, each before it was trained."""

    event: ClassVar[str] = "window"
    start: Annotated[float, "when the window begins, seconds since 1970 of event time"]
    seconds: Annotated[float, "how long it is"]
    num_messages: Annotated[int, "messages of the window"]
    num_measured: Annotated[int, "records that were measured for the metrics"]
    loss: Annotated[float | None, "mean loss of the minibatches of the window"]
    metrics: Annotated[Mapping[str, float], "metrics by name"]
