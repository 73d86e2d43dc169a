"""The trackers that draw the curves of a job: TensorBoard, and the trackers of packages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from elasticdl import registry
from elasticdl.config import JobConfig
from elasticdl.job.status import JobStatus
from elasticdl.master.actions import Note
from elasticdl.master.histograms import take_histograms
from elasticdl.observe import kinds
from elasticdl.observe.kind import Kind
from elasticdl.observe.tensorboard import Summaries
from elasticdl.observe.tracker import Begin, Tracker

_END_SECONDS = 60.0  # of a job, for the last numbers and the model
_LEAVE_SECONDS = 10.0  # of a master that another one follows
_SILENT_SECONDS = 3.0  # a wait that is longer is told


class Trackers:
    """The trackers of a job that its flags ask for."""

    def __init__(self, config: JobConfig, job: str, folder: Path) -> None:
        """Begin to draw.

        Args:
            config: The job's settings.
            job: Its identity, for ever.
            folder: The job's folder.

        Raises:
            ConfigError: A package is missing, or a folder cannot be written to.
        """
        seeing = config.seeing
        self._config, self._job = config, job
        self._summaries: Summaries | None = None
        self._all: list[Tracker] = []
        if seeing.tensorboard_log_dir is not None:
            self._summaries = Summaries(seeing.tensorboard_log_dir)
            self._all.append(self._summaries)
        begins: dict[str, Begin] = registry.brought("trackers")
        for begin in begins.values():
            tracker = begin(config, job, folder)
            self._all += [tracker] if tracker is not None else []

    def take(self, status: JobStatus, learning_rate: float | None, is_last: bool = False) -> None:
        """Have the new values of a picture drawn."""
        for each in self._all:
            each.take(status, learning_rate, is_last)

    def happened(self, kind: Kind) -> None:
        """Have histograms drawn of a checkpoint, if that is what has happened."""
        take_histograms(self._summaries, kind, self._config, self._job)

    async def close(self, has_job_ended: bool, tell: Callable[[Note], None]) -> None:
        """Wait for some seconds until the rest is drawn, and name the tracker that is awaited."""
        seconds = _END_SECONDS if has_job_ended else _LEAVE_SECONDS
        closing = {
            asyncio.ensure_future(asyncio.to_thread(each.close, seconds)): each.flag
            for each in self._all
        }
        if not closing:
            return
        _, waiting = await asyncio.wait(closing, timeout=_SILENT_SECONDS)
        if waiting:
            flags = tuple(sorted(closing[each] for each in waiting))
            text = f"waiting up to {seconds:.0f} s for {', '.join(flags)} to take what came last"
            tell(Note(kinds.TrackersAwaited(flags), text))
            await asyncio.wait(waiting)
