"""The simulator of cost beside real jobs on this machine: calibrated, then predicted and measured.

    python benchmarks/simulate.py [--runs=3] [--seconds=10] [--short]

- The flights' DeepFM is calibrated as `elasticdl simulate --calibrate` does it, with one ps
  replica and with eight. Then jobs of 1, 2 and 4 workers and one ps replica are measured for some
  seconds each.
- The counting model of `make chaos` is calibrated in the same way. Then its job of three workers
  and two ps replicas runs whole, without faults and with three workers killed one after the other.

All processes share the cores of this machine. While a job is measured its threads run before those
of all others (SCHED_RR, which needs root), so that neighbours do not show; Linux leaves others a
twentieth. The run with the median error counts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import psutil
from report import Row, Side, compare, write_results
from rich.console import Console
from workloads import FLIGHTS, prepare

from elasticdl.cli.calibrate import calibrate, reading, running_job
from elasticdl.observe.events import read_events
from elasticdl.runtime.proc import threads_of
from elasticdl.simulator.calibration import speed_between
from elasticdl.simulator.cluster import Cluster
from elasticdl.simulator.costs import Costs
from elasticdl.simulator.pace import Death, records_per_second, run
from scripts.chaos.job import (
    MINIBATCH_SIZE,
    MINIBATCHES_PER_TASK,
    NUM_EPOCHS,
    NUM_PS,
    NUM_RECORDS,
    NUM_WORKERS,
)
from scripts.chaos.run import Record
from scripts.chaos.run import run as run_chaos

CORES = len(os.sched_getaffinity(0))
WORKERS = (1, 2, 4)
KILLS = ("worker", "worker", "worker")
CHAOS_SEED = 3
LEFT = 0.95  # of a core, for threads of SCHED_RR
BESIDE, FIRST = 1, 2
LOOK_SECONDS = 0.2


def main() -> None:
    """Calibrate, predict, measure, and write `results/simulate.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="to measure a job for")
    parser.add_argument("--short", action="store_true", help="one run of each, not kept")
    args = parser.parse_args()
    runs = 1 if args.short else args.runs
    prepare(FLIGHTS)
    flags = ["--model_zoo=model_zoo", f"--training_data={FLIGHTS.folder}", "--minibatch_size=512"]
    costs = calibrate("flights.deepfm.forward", flags, args.seconds, prefer)
    job = ["--model_def=flights.deepfm.forward", *flags]
    rows = [
        row_of(
            f"flights, {num} worker{'s' * (num > 1)}, 1 ps replica",
            runs,
            partial(flights, costs, job, num, args.seconds),
        )
        for num in WORKERS
    ]
    counting, chaos_rows = chaos(runs, args.seconds)
    notes = {"costs": asdict(costs), "costs of the counting model": asdict(counting)}
    write_results("simulate", rows + chaos_rows, notes, keep=not args.short)


def row_of(what: str, runs: int, measure: Callable[[], tuple[float, float]]) -> Row:
    """Make a row of runs that each give what was predicted and what was measured, records/s."""
    pairs = []
    for _ in range(runs):
        predicted, measured = measure()
        pairs.append((predicted, measured))
        say(
            f"{what}: predicted {predicted:,.0f}, measured {measured:,.0f} records/s: "
            f"{predicted / measured - 1:+.1%}"
        )
    # The run with the median error stands for all.
    pairs.sort(key=lambda pair: pair[0] / pair[1])
    predicted, measured = pairs[len(pairs) // 2]
    row = compare(what, "records/s", Side((predicted,)), Side((measured,)))
    return replace(row, runs={"ours": [p for p, _ in pairs], "peer": [m for _, m in pairs]})


def flights(costs: Costs, flags: list[str], num: int, seconds: float) -> tuple[float, float]:
    """Measure a job of some workers; return what is predicted and what was measured."""
    with running_job(flags, num, 1) as job_dir:
        prefer(job_dir)
        before = reading(job_dir)
        time.sleep(seconds)
        speed = speed_between(before, reading(job_dir), CORES, is_first=True)
    cluster = Cluster(workers=num, ps=1, shared_cores=CORES * LEFT)
    say(f"  {speed.own_cores:.2f} cores are used")
    return records_per_second(costs, cluster), speed.rate * costs.minibatch_size


def chaos(runs: int, seconds: float) -> tuple[Costs, list[Row]]:
    """Run the job of `make chaos` without and with kills; return the costs, and both rows."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        place = Path(folder, "flags")
        record = run_chaos(CHAOS_SEED, [], place, Console(file=sys.stderr))
        costs = calibrate(
            "counting.model.forward",
            [
                *("--model_zoo=model_zoo", f"--training_data={place / 'data'}"),
                f"--minibatch_size={MINIBATCH_SIZE}",
                f"--num_minibatches_per_task={MINIBATCHES_PER_TASK}",
                *(f"--{name}={value}" for name, value in record.flags.items()),
            ],
            seconds,
            prefer,
        )
        kinds = {"no fault": (), "3 workers killed": KILLS}
        return costs, [
            row_of(f"make chaos, {name}", runs, partial(disturbed, costs, of, Path(folder)))
            for name, of in kinds.items()
        ]


def disturbed(costs: Costs, kinds: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Run the job with faults; return records/s that counted, predicted and measured."""
    place = Path(tempfile.mkdtemp(dir=folder))
    with preferred(place):
        record = run_chaos(CHAOS_SEED, list(kinds), place, Console(file=sys.stderr))
    minibatches = NUM_RECORDS * NUM_EPOCHS // MINIBATCH_SIZE
    cluster = Cluster(workers=NUM_WORKERS, ps=NUM_PS, shared_cores=CORES * LEFT)
    trace = run(costs, cluster, minibatches, deaths_of(record, minibatches))
    say(f"  {trace.lost} minibatches taken up again")
    return minibatches * MINIBATCH_SIZE / trace.trained[-1], counted_per_second(place)


def deaths_of(record: Record, minibatches: int) -> list[Death]:
    """Return the kills that happened, when they did; whom does not matter."""
    return [
        Death(round(struck.share * minibatches), number % NUM_WORKERS)
        for number, struck in enumerate(record.struck)
        if struck.victims
    ]


def counted_per_second(place: Path) -> float:
    """Return the records/s of a job from when its master hands out tasks until all are trained."""
    pictures = [event for event in read_events(place / "job") if event["event"] == "picture"]
    done = [(event["time"], event["records_done"]) for event in pictures]
    start = next((when, num) for when, num in done if num)
    end = next((when, num) for when, num in done if num == done[-1][1])
    return float((end[1] - start[1]) / (end[0] - start[0]))


def prefer(folder: Path) -> None:
    """Have the processes of a job run before all others; of a worker, who computes comes first."""
    for process in psutil.process_iter(["cmdline"]):
        if not any(str(folder) in word for word in process.info["cmdline"] or ()):
            continue
        for thread in threads_of(process.pid):
            with contextlib.suppress(ProcessLookupError):
                rank = BESIDE if thread.priority > 0 else FIRST
                os.sched_setscheduler(thread.thread_id, os.SCHED_RR, os.sched_param(rank))


@contextlib.contextmanager
def preferred(folder: Path) -> Iterator[None]:
    """Prefer a job's processes for as long as the block lasts, those that start in it too."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            prefer(folder)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def say(words: str) -> None:
    """Tell who waits."""
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
