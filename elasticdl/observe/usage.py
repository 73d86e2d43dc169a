"""Measures the time and the resources of a process, for its heartbeats."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from elasticdl.job import HotKeys, Usage
from elasticdl.observe.kinds import ProcessUsage
from elasticdl.observe.labels import LabelClock
from elasticdl.runtime.proc import core_wait_seconds, resident_bytes

Traffic = Callable[[], tuple[int, int]]
"""Returns the bytes that this process has sent and received on the tensor plane."""


def no_traffic() -> tuple[int, int]:
    """Return the bytes of a process that does not use the tensor plane."""
    return 0, 0


def measure(
    labels: LabelClock, traffic: Traffic = no_traffic, hot_keys: tuple[HotKeys, ...] = ()
) -> Usage:
    """Return the time and resources that this process has used up to now."""
    sent, received = traffic()
    return Usage(
        began=round(labels.began, 3),
        label=labels.label,
        label_seconds={str(label): round(s, 6) for label, s in labels.seconds().items()},
        cpu_seconds=round(time.process_time(), 3),
        resident_bytes=resident_bytes(),
        bytes_sent=sent,
        bytes_received=received,
        host=socket.gethostname(),
        hot_keys=hot_keys,
        core_wait_seconds=round(core_wait_seconds(), 3),
    )


def kind_of(usage: Usage) -> ProcessUsage:
    """Return a usage as an event."""
    return ProcessUsage(
        usage.began,
        str(usage.label),
        usage.label_seconds,
        usage.cpu_seconds,
        usage.resident_bytes,
        usage.bytes_sent,
        usage.bytes_received,
        usage.host,
        usage.core_wait_seconds,
    )
