"""How far a job is in its stream, as the command shows it (packages/streams/status_view.py)."""

import dataclasses
import io
import re

from rich.console import Console

from elasticdl.cli.display import panel
from elasticdl.job.status import PartitionStatus, WindowStatus, no_status
from elasticdl.packages.streams.status_view import partitions_table, windows_table


def test_a_stream_has_a_lag_a_delay_and_what_cannot_be_read():
    streams = (
        PartitionStatus("clicks-0", 900, 1_200, lag=300, skipped=5, time=1000.0),
        PartitionStatus("clicks-1", 50, 50, lag=0, time=1000.0),
        PartitionStatus("clicks-2", 0, 9, lag=9),
    )
    status = dataclasses.replace(no_status("ads", 3), partitions=streams, num_unreadable=1)
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(panel(status))
    console.print(partitions_table(streams, now=1002.5))
    shown = console.file.getvalue()
    assert re.search(r"lag +309 in 3 partitions", shown)
    assert re.search(r"unreadable +1 message, set aside", shown)
    assert re.search(r"gone +5 messages, deleted by the broker .* read: clicks-0 5", shown)
    assert re.search(r"clicks-0 +│ +900 +│ +1,200 +│ +300 +│ +2.5 s +│ +5 ", shown), shown
    assert re.search(r"clicks-1 +│ +50 +│ +50 +│ +0 +│ +0.0 s +│ +0 ", shown), shown
    assert re.search(r"clicks-2 +│ +0 +│ +9 +│ +9 +│ +│ +0 ", shown), shown


def test_a_stream_has_a_watermark_late_messages_and_windows_of_event_time():
    windows = (
        WindowStatus(1_769_860_800.0, 60.0, 2_000, 1_500, 0.25, {"auc": 0.75}, is_over=True),
        WindowStatus(1_769_860_860.0, 60.0, 7),
    )
    lag = (PartitionStatus("clicks-0", 1, 1, lag=0),)
    given = {"partitions": lag, "num_late": 3, "windows": windows, "watermark": 1_769_860_861.0}
    status = dataclasses.replace(no_status("ads", 3), **given)
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(panel(status))
    console.print(windows_table(status.windows))
    shown = console.file.getvalue()
    assert re.search(r"watermark +2026-01-31 12:01:01 UTC, [\d:]+ behind", shown)
    assert re.search(r"late +3 messages", shown)
    assert re.search(r"12:00:00 UTC +│ +2,000 +│ +1,500 +│ +0.25 +│ +0.75 ", shown), shown
    assert re.search(r"12:01:00 UTC \.\.\. +│ +7 +│ +0 +│ +│ +│", shown), shown
