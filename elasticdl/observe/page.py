"""Finds the package that makes the page of a job and the metrics for Prometheus.

The package is imported only if the job's settings want one of these.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from elasticdl import registry
from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.job import Event, Progress, Role, Usage
from elasticdl.observe.labels import LabelClock
from elasticdl.observe.usage import Traffic, measure
from elasticdl.runtime.credentials.files import TlsFiles
from elasticdl.runtime.process import ProcessArguments

Recorded = TypeVar("Recorded")


class JobPage(Protocol):
    """The page of one job; events are taken in from when it is made."""

    def put(self, event: Event) -> None:
        """Take in an event; any thread may call it, and it never waits."""
        ...

    def start(self, port: int) -> str:
        """Serve at a port, or at any if it is 0, and return the address; blocks.

        Raises:
            ConfigError: The port is taken, or a package of Python is missing.
        """
        ...

    def tell_end(self) -> None:
        """Wait until a page that is open knows that the job is over, for some seconds at most."""
        ...

    def close(self) -> None:
        """Stop serving."""
        ...


class Pages(Protocol):
    """Makes pages, and serves metrics of processes."""

    def page(self, job_dir: Path, token: bytes, config: JobConfig, tls: TlsFiles | None) -> JobPage:
        """Return the page of the job in a folder, which is not served yet.

        Args:
            job_dir: The folder.
            token: The job's secret.
            config: The job's settings.
            tls: The master's key and certificates, for clients that ask for metrics of its pod.
        """
        ...

    def serving(
        self,
        arguments: ProcessArguments,
        role: Role,
        usage: Callable[[], Usage],
        progress: Callable[[], Progress] | None,
        stats: Callable[[], str] | None,
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a process serves its metrics; see `serving` below."""
        ...


def pages() -> Pages:
    """Return what makes pages.

    Raises:
        ConfigError: No package brings it.
    """
    found: Pages | None = registry.only("pages")
    if found is None:
        raise ConfigError(
            "--dashboard_port, --metrics_port: no package here brings a page and metrics; "
            "reinstall elasticdl"
        )
    return found


MakeProfiler = Callable[[Recorded, Path, str], Callable[[], None]]
"""Returns what looks for requests of profiles, which is called with each heartbeat.

Called with what records the stages of the process, the job's folder and the name of the process.
"""


def profiler(role: Role) -> MakeProfiler[Any]:
    """Return what makes the profilers of a role; without a package there is no request."""
    place = registry.places("profilers").get(role)
    made: MakeProfiler[Any] = _no_profiler if place is None else registry.load(place)
    return made


def _no_profiler(recorded: object, job_dir: Path, name: str) -> Callable[[], None]:
    return lambda: None


def serving(
    arguments: ProcessArguments,
    role: Role,
    labels: LabelClock,
    traffic: Traffic,
    progress: Callable[[], Progress] | None = None,
    stats: Callable[[], str] | None = None,
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which this process serves its metrics, if the settings want it.

    Args:
        arguments: The arguments of the process.
        role: The role of the process.
        labels: Counts its time by what it does.
        traffic: Counts the bytes that it has sent and received.
        progress: The progress of a worker.
        stats: The statistics of a ps replica, as `Store.stats` returns it.
    """
    if arguments.config.seeing.metrics_port is None:
        return contextlib.nullcontext()
    return pages().serving(arguments, role, lambda: measure(labels, traffic), progress, stats)
