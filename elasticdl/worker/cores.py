"""Decides how many processor cores and threads a worker computes with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from elasticdl.backends.load import has_tables
from elasticdl.config import JobConfig
from elasticdl.job import Strategy
from elasticdl.launchers import choose

_VARIABLE = "TF_NUM_INTRAOP_THREADS"
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads compute a step, and the reason."""

    count: int
    reason: str

    def __str__(self) -> str:
        return f"computes with {self.count} thread{'s' * (self.count > 1)} ({self.reason})"


def threads_of(config: JobConfig) -> Threads:
    """Return how many threads a worker of this host uses, once the model file is imported."""
    is_local = config.training.distribution_strategy is Strategy.LOCAL
    cores = choose.parts_of(config).cores(config, usable_cores())
    # On a cluster each worker has cores of its own.
    return choose_threads(
        config.cluster.worker_threads,
        cores,
        1 if is_local or config.is_on_cluster else config.cluster.num_workers,
        has_tables(),
        os.environ,
        config.training.deterministic,
    )


def choose_threads(
    setting: int | Literal["auto"],
    cores: int,
    num_workers: int,
    has_tables: bool,
    environment: Mapping[str, str],
    is_deterministic: bool = False,
) -> Threads:
    """Return how many threads a worker computes with.

    A small sparse step is faster with one thread. Its operations are so short that threads cost
    more than they gain, and other workers on the host use the other cores. The layers of a dense
    model are long enough to be divided. `benchmarks/threads.py` measures both.

    Args:
        setting: `--worker_threads`.
        cores: The cores that the workers of this host may use together.
        num_workers: How many workers share them.
        has_tables: Whether the model file uses `elasticdl.layers.Embedding`.
        environment: TensorFlow's own variable has precedence, as in plain TensorFlow.
        is_deterministic: The number of workers must not change the last bits of a sum.
    """
    if setting != "auto":
        return Threads(setting, "--worker_threads")
    given = environment.get(_VARIABLE, "")
    if given.isdecimal() and int(given):  # 0 is as none, as in TensorFlow
        return Threads(int(given), _VARIABLE)
    # Workers share the cores, so the number of threads would depend on the number of workers. A sum
    # over other threads is rounded otherwise.
    if is_deterministic:
        return Threads(1, "--deterministic: whatever the number of workers")
    if has_tables:
        return Threads(1, "the model file has elasticdl.layers.Embedding: its steps are short")
    share = max(1, cores // num_workers)
    return Threads(share, f"{cores} cores for {num_workers} worker{'s' * (num_workers > 1)}")


def usable_cores(cgroups: Path = _CGROUPS, own_cgroups: Path = _OWN_CGROUPS) -> int:
    """Return how many cores this process may use: by affinity and by the quotas of its cgroups."""
    cores = float(len(os.sched_getaffinity(0)))
    return max(1, int(min([cores, *_quotas(cgroups, own_cgroups)])))


def _quotas(cgroups: Path, own_cgroups: Path) -> Iterator[float]:
    """Yield the quota of each cgroup that the process is in, in cores; none where there is none."""
    try:
        lines = own_cgroups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2: one tree, a quota may be at each of its levels
            for folder in _levels(cgroups, path):
                yield from _quota_of((folder / "cpu.max",))
        elif "cpu" in controllers.split(","):
            for folder in _levels(cgroups / "cpu", path):
                yield from _quota_of((folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"))


def _levels(root: Path, path: str) -> Iterator[Path]:
    """Yield a cgroup's folder and those above it; in a container only the last may be visible."""
    relative = PurePosixPath(path.lstrip("/"))
    for part in (relative, *relative.parents):
        if ".." not in part.parts:
            yield root / part


def _quota_of(files: tuple[Path, ...]) -> Iterator[float]:
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
    except (OSError, ValueError):
        return
    if quota not in ("max", "-1"):
        yield int(quota) / int(period)
