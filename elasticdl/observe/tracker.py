"""Draws the curves of a job elsewhere; packages bring who does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from elasticdl import registry
from elasticdl.config import JobConfig
from elasticdl.job.status import JobStatus
from elasticdl.observe.kind import Kind


class Tracker(Protocol):
    """Draws the curves of a job elsewhere."""

    flag: str  # that asks for it, as `--mlflow_uri`

    def take(self, status: JobStatus, learning_rate: float | None, is_last: bool = False) -> None:
        """Draw the news of a picture; now and then, and always the last one. It does not wait."""

    def close(self, seconds: float) -> None:
        """Wait until the rest is drawn, within a limited time."""


@runtime_checkable
class HearsOfEvents(Protocol):
    """A tracker that draws more when something happens, such as a checkpoint."""

    def happened(self, kind: Kind) -> None:
        """Draw what belongs to an event. It does not wait."""


Begin = Callable[[JobConfig, str, Path], Tracker | None]
"""Begins a tracker of a job if its settings ask for one: given its settings, its identity for ever,
and its folder. Raises a `ConfigError` if a package is missing, or a folder cannot be written to."""


class Trackers:
    """The trackers that the settings of a job ask for."""

    def __init__(self, config: JobConfig, job: str, folder: Path) -> None:
        """Begin to draw.

        Args:
            config: The job's settings.
            job: Its identity, for ever.
            folder: The job's folder.

        Raises:
            ConfigError: A package is missing, or a folder cannot be written to.
        """
        begins: dict[str, Begin] = registry.brought("trackers")
        begun = [begin(config, job, folder) for begin in begins.values()]
        self.all = [tracker for tracker in begun if tracker is not None]

    def take(self, status: JobStatus, learning_rate: float | None, is_last: bool = False) -> None:
        """Have the new values of a picture drawn."""
        for each in self.all:
            each.take(status, learning_rate, is_last)

    def happened(self, kind: Kind) -> None:
        """Have drawn what belongs to an event."""
        for each in self.all:
            if isinstance(each, HearsOfEvents):
                each.happened(kind)
