"""The kinds of events of streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from elasticdl.observe.kind import Kind


class Unreadable(Kind):
    """Messages could not be read, and were set aside.

    The event is written at the first message, and each time that the number has doubled.
    """

    event: ClassVar[str] = "unreadable"
    num_messages: Annotated[int, "number of such messages so far"]
    partition: Annotated[str, "partition of the newest of them"]


class MessagesLate(Kind):
    """Messages came late.

    The event is written at the first message, and each time that the number has doubled.
    """

    event: ClassVar[str] = "messages late"
    num_messages: Annotated[int, "number of such messages so far"]
    partition: Annotated[str, "partition of the newest of them"]


class MessagesGone(Kind):
    """The broker deleted messages before they were read, and `--on_gap=skip` left them out.

    The event is written at the first message, and each time that the number has doubled.
    """

    event: ClassVar[str] = "messages gone"
    num_messages: Annotated[int, "number of positions that were deleted so far"]
    partition: Annotated[str, "partition of the newest of them"]


class WindowScored(Kind):
    """A window of event time is over. Its messages were scored before they were trained."""

    event: ClassVar[str] = "window"
    start: Annotated[float, "when the window begins, in seconds of event time since 1970"]
    seconds: Annotated[float, "length of the window"]
    num_messages: Annotated[int, "number of messages in the window"]
    num_measured: Annotated[int, "number of records on which the metrics were measured"]
    loss: Annotated[float | None, "mean loss of the minibatches of the window"]
    metrics: Annotated[Mapping[str, float], "metrics by name"]
