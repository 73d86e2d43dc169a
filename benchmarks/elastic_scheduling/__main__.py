"""Elastic jobs on a shared cluster: two that overlap, and one beside a service.

    python -m benchmarks.elastic_scheduling [--short] [overlap] [quotas] [colocation]

It runs on the project's test cluster (docs/designs/test-cluster.md): a real API server, scheduler
and controllers, three nodes, pods that are processes of this machine. Needs root, and
`make kubernetes-tools`.

overlap: three nodes of 8 declared CPUs; steps wait as long as they would compute on one of them.
quotas: the same with real computing; a unit is a part of a core, which the kernel's quota holds.
colocation: a service of high priority, whose replicas follow a load curve, beside one elastic job.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, machine, versions
from scripts.cluster.cluster import Cluster, Shape, missing
from scripts.cluster.control_groups import ControlGroup

from . import colocation, figures, overlap
from .jobs import Work, make_priorities
from .model_zoo.paced.model import multiply

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
NUM_NODES = 3
UNITS_PER_NODE = overlap.UNITS // NUM_NODES
STEP_SECONDS = 0.25
QUOTA = 0.06  # CPUs of a unit: 24 of them, and the control plane, fit two cores
COMPUTE_SECONDS = 0.03  # of a step, on a core of its own
WEIGHT = 4.0  # of all pods together, beside a process of this machine
_OVERHEAD = 1.4  # what a worker takes besides its steps, of a quota
Document = dict[str, Any]


def main() -> int:
    """Run what was asked for, and write results and figures."""
    assert __doc__
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    experiments: dict[str, Callable[[bool], Document]] = {
        "overlap": run_overlap,
        "quotas": run_quotas,
        "colocation": run_colocation,
    }
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=", ".join(experiments))
    parser.add_argument("--short", action="store_true", help="small ones, not kept")
    arguments = parser.parse_args()
    unknown = set(arguments.experiments) - set(experiments)
    if unknown:
        parser.error(f"expected {', '.join(experiments)}, found {', '.join(sorted(unknown))}")
    if lacks := missing():
        print(lacks, file=sys.stderr)
        return 1
    for name in arguments.experiments or experiments:
        found = experiments[name](arguments.short)
        print(json.dumps(_without_series(found), indent=2))
        _write(name, found, keep=not arguments.short)
    return 0


def run_overlap(is_short: bool) -> Document:
    """Run the two jobs with steps that wait."""
    seconds, later = (12.0, 4.0) if is_short else (100.0, 30.0)
    work = Work(
        num_steps=round(seconds / STEP_SECONDS * overlap.NUM_WORKERS),
        num_workers=overlap.NUM_WORKERS,
        params=f"wait_seconds={STEP_SECONDS}",
        cpus="1",
    )
    how = f"a step waits {STEP_SECONDS} s, as if it computed on one declared CPU"
    return _both(overlap.Case(work, unit=1.0, later=later), how)


def run_quotas(is_short: bool) -> Document:
    """Run the two jobs with steps that compute, within quotas."""
    seconds, later = (20.0, 15.0) if is_short else (90.0, 30.0)
    count = _multiplications(COMPUTE_SECONDS)
    work = Work(
        num_steps=round(seconds * overlap.NUM_WORKERS * QUOTA / COMPUTE_SECONDS / _OVERHEAD),
        num_workers=overlap.NUM_WORKERS,
        params=f"multiplications={count}",
        cpus=f"{QUOTA * 1000:.0f}m",
        flags={"envs": "OPENBLAS_NUM_THREADS=1", "heartbeat_seconds": 5},
    )
    how = (
        f"a step is {count} products of 256x256 matrices, {COMPUTE_SECONDS} s of a core; each pod "
        f"has a quota of {QUOTA} cores"
    )
    return _both(overlap.Case(work, unit=QUOTA, later=later), how)


def run_colocation(is_short: bool) -> Document:
    """Run the service and the job."""
    curve: tuple[tuple[float, int], ...] = ((10.0, 2), (12.0, 4), (12.0, 2))
    if not is_short:
        curve = ((20.0, 2), (30.0, 4), (30.0, 8), (30.0, 5), (30.0, 2), (30.0, 7), (30.0, 3))
    work = Work(
        num_steps=1000,
        num_workers=20,
        params=f"wait_seconds={STEP_SECONDS}",
        cpus="1",
        num_epochs=1000,
        flags={
            "master_pod_priority": "high",
            "ps_pod_priority": "high",
            "worker_pod_priority": "low",
        },
    )
    with _cluster(1.0) as cluster:
        make_priorities(cluster)
        found = colocation.run(cluster, colocation.Case(work, curve))
    how = (
        f"a step waits {STEP_SECONDS} s; a replica of the service requests 2 CPUs and does nothing"
    )
    return {"how": how, "nodes": f"{NUM_NODES} of {UNITS_PER_NODE} declared CPUs", **found}


def _both(case: overlap.Case, how: str) -> Document:
    modes = {}
    for mode in ("gang", "elastic"):
        with _cluster(case.unit) as cluster:
            modes[mode] = overlap.run(cluster, case, is_gang=mode == "gang")
        print(f"{mode}: {modes[mode]['seconds']:.0f} s", file=sys.stderr)
    return {
        "how": how,
        "nodes": f"{NUM_NODES} of {UNITS_PER_NODE} units of {case.unit:g} CPUs",
        "a job": f"{case.work.num_pods} pods of one unit: master, ps replica, "
        f"{case.work.num_workers} workers; {case.work.num_steps} steps",
        "the second job is submitted after": case.later,
        "total time, elastic / gang": modes["elastic"]["seconds"] / modes["gang"]["seconds"],
        "modes": modes,
    }


@contextmanager
def _cluster(unit: float) -> Iterator[Cluster]:
    shape = Shape(cpus=round(UNITS_PER_NODE * unit, 3), memory="64Gi")
    with Cluster([shape] * NUM_NODES) as cluster:
        # Its pods are not to count as one process beside whatever else this machine does.
        ControlGroup(cluster.control_group).weigh(WEIGHT)
        yield cluster


def _multiplications(seconds: float) -> int:
    """Return how many products take so many seconds of a core here."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        multiply(20)
        best = min(best, (time.process_time() - began) / 20)
    return max(1, round(seconds / best))


def _without_series(found: Document) -> Document:
    return {
        key: _without_series(value) if isinstance(value, dict) else value
        for key, value in found.items()
        if key not in ("units held", "CPUs held")
    }


def _write(name: str, found: Document, keep: bool) -> None:
    folder = RESULTS if keep else Path(tempfile.gettempdir(), "short-benchmarks")
    pictures = FIGURES if keep else folder
    for each in (folder, pictures):
        each.mkdir(exist_ok=True)
    document = {
        "name": f"elastic_scheduling_{name}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        **found,
    }
    path = folder / f"elastic_scheduling_{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    picture = pictures / f"elastic-scheduling-{name}.svg"
    picture.write_text(figure(name, document))
    print(f"written to {path} and {picture}")


def figure(name: str, document: Document) -> str:
    """Return the picture of a result."""
    if name == "colocation":
        return figures.colocation(document["how"], document, colocation.CPUS)
    return figures.overlap(document["how"], document["modes"], overlap.UNITS)


if __name__ == "__main__":
    sys.exit(main())
