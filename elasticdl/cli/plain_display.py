"""Displays for scripts: `--quiet` and `--log_format=json`."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import rich_click as click

from elasticdl.cli.display import LINE_SECONDS, Display
from elasticdl.job.status import JobStatus
from elasticdl.observe.events import finite


class QuietDisplay(Display):
    """Prints nothing; the command's error and exit code tell what went wrong."""

    def show(self, status: JobStatus) -> None:
        """Keep the picture."""
        self.last = status

    def note(self, event: str) -> None:
        """Keep the event for `--summary`."""
        self._keep(event)

    def problem(self, text: str) -> None:
        """Keep the problem as an event."""
        self.note(text)

    def tell(self, words: str) -> None:
        """Print nothing."""

    def finish(self, status: JobStatus, places: dict[str, str]) -> None:
        """Keep the last picture."""
        self.last = status


class JsonDisplay(QuietDisplay):
    """Prints one JSON object a line: `progress` every few seconds, `event`, and `end`."""

    def show(self, status: JobStatus) -> None:
        """Print a picture, if none was printed for some seconds or the job has gone on."""
        before, self.last = self.last, status
        if status.data_check and not self._told_data:
            self._told_data = status.data_check
            self._say("data", lines=list(status.data_check))
        is_news = before is None or before.status != status.status
        if not is_news and self._clock() < self._next_line:
            return
        self._next_line = self._clock() + LINE_SECONDS
        self._say("progress", **_numbers(status))

    def note(self, event: str) -> None:
        """Print the event."""
        super().note(event)
        self._say("event", text=event)

    def tell(self, words: str) -> None:
        """Print the words."""
        self._say("event", text=words)

    def finish(self, status: JobStatus, places: dict[str, str]) -> None:
        """Print how the job ended."""
        super().finish(status, places)
        ledger = [dataclasses.asdict(row) for row in status.ledger]
        self._say("end", **_numbers(status), ledger=ledger, places=places)

    def _say(self, kind: str, **words: Any) -> None:
        click.echo(json.dumps({"time": round(time.time(), 3), "kind": kind, **words}))


def _numbers(status: JobStatus) -> dict[str, Any]:
    names = (
        "job_name", "status", "message", "epoch", "num_epochs", "records_done", "records_total",
        "records_per_second", "loss", "epoch_loss", "model_version", "tasks_todo", "tasks_doing",
        "tasks_done", "num_workers_alive", "num_ps_alive", "metrics", "train_metrics",
    )  # fmt: skip
    return {name: finite(getattr(status, name)) for name in names}
