"""The simulator of cost against real jobs on this machine: predicted and measured speeds.

    python benchmarks/simulate.py [--runs=3] [--seconds=8] [--short]

- The flights' DeepFM is calibrated as by `elasticdl simulate --calibrate`, with one ps replica and
  with eight. Then jobs of 1, 2 and 4 workers and one ps replica are measured for some seconds.
  "At its own costs" is a second prediction. It uses the processor time for a minibatch in this job,
  which changes from minute to minute on a shared machine.
- Jobs of one worker and 2, 8 and 16 ps replicas: the processor time of all processes for a record,
  as the costs of that calibration say, and as measured.
- The job of `make chaos`, with three workers and two ps replicas, first runs without faults. Its
  model is calibrated in the same way. Then the job runs while three workers are killed one after
  the other. Goodput is the records/s with kills divided by the records/s without.

All processes share the cores of this machine. The threads of a measured job run before all other
threads (SCHED_RR, which needs root), so neighbours do not matter. Linux leaves a twentieth of the
time to others. The run with the median error counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import psutil
from report import RESULTS, Row, Side, compare, write_results
from rich.console import Console
from workloads import FLIGHTS, prepare

from elasticdl.observe.events import read_events
from elasticdl.packages.simulate.calibrate import calibrate, reading, running_job
from elasticdl.packages.simulate.calibration import JobSpeed, speed_between
from elasticdl.packages.simulate.cluster import Cluster
from elasticdl.packages.simulate.costs import Costs
from elasticdl.packages.simulate.pace import Death, records_per_second, run
from elasticdl.runtime.proc import threads_of
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
REPLICAS = (2, 8, 16)
KILLS = ("worker", "worker", "worker")
KILLED = "3 workers killed"
GOODPUT = f"make chaos, {KILLED}: records/s beside those without faults"
FLIGHTS_MODEL = "flights.deepfm.forward"
FLIGHTS_FLAGS = (
    "--model_zoo=model_zoo",
    f"--training_data={FLIGHTS.folder}",
    "--minibatch_size=512",
)
Pairs = dict[str, list[tuple[float, float]]]
CHAOS_SEED = 3
MINIBATCHES = NUM_RECORDS * NUM_EPOCHS // MINIBATCH_SIZE
PARTS = ("flights", "ps replicas", "make chaos")
LEFT = 0.95  # of a core, for threads of SCHED_RR
BESIDE, FIRST = 1, 2
LOOK_SECONDS = 0.2


def main() -> None:
    """Calibrate, predict, measure, and write `results/simulate.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="to measure a job for")
    parser.add_argument("--part", choices=PARTS, help="this alone; results of the other are kept")
    parser.add_argument("--short", action="store_true", help="one run of each, not kept")
    args = parser.parse_args()
    runs = 1 if args.short else args.runs
    prepare(FLIGHTS)
    pairs: Pairs = {}
    parts = {"flights": flights, "ps replicas": replicas, "make chaos": chaos}
    wanted = [args.part] if args.part else list(parts)
    costs = [parts[name](pairs, args.seconds) for name in wanted for _ in range(runs)]
    rows = [*kept(wanted), *(row_of(what, of) for what, of in pairs.items())]
    rows.sort(key=lambda row: [row.what.startswith(name) for name in parts], reverse=True)
    notes = {"costs of each calibration": [asdict(of) for of in costs]}
    write_results("simulate", rows, notes, keep=not args.short)


def kept(wanted: list[str]) -> list[Row]:
    """Return the rows of the last results that are not measured now."""
    path = RESULTS / "simulate.json"
    found = json.loads(path.read_text())["rows"] if path.exists() else []
    return [Row(**row) for row in found if not row["what"].startswith(tuple(wanted))]


def row_of(what: str, pairs: list[tuple[float, float]]) -> Row:
    """Make a row of a prediction and a measurement from the run with the median error.

    If there are two runs, the run with the larger error counts.
    """
    by_error = sorted(pairs, key=lambda pair: abs(pair[0] / pair[1] - 1))
    predicted, measured = by_error[len(pairs) // 2]
    other_units = {GOODPUT: "%", **{of_replicas(num): "us a record" for num in REPLICAS}}
    unit = other_units.get(what, "records/s")
    row = compare(what, unit, Side((predicted,)), Side((measured,)))
    return replace(row, runs={"ours": [p for p, _ in pairs], "peer": [m for _, m in pairs]})


def note(pairs: Pairs, what: str, predicted: float, measured: float) -> None:
    """Keep a pair, and print it."""
    pairs.setdefault(what, []).append((predicted, measured))
    error = predicted / measured - 1
    say(f"{what}: predicted {predicted:,.1f}, measured {measured:,.1f}: {error:+.1%}")


def flights(pairs: Pairs, seconds: float) -> Costs:
    """Calibrate, then predict and measure jobs of some numbers of workers."""
    costs = calibrate(FLIGHTS_MODEL, FLIGHTS_FLAGS, seconds, prefer)
    for num in WORKERS:
        speed = speed_of_flights(num, 1, seconds)
        cluster = Cluster(workers=num, ps=1, shared_cores=CORES * LEFT)
        measured = speed.rate * costs.minibatch_size
        what = f"flights, {num} worker{'s' * (num > 1)}, 1 ps replica"
        note(pairs, what, records_per_second(costs, cluster), measured)
        drift = speed.own_cores / speed.rate / costs.per_minibatch
        say(f"  a minibatch cost {drift:.2f} times as much processor time as when it was measured")
        as_then = replace(cluster, processor_speed=1 / drift)
        note(pairs, f"{what}, at its own costs", records_per_second(costs, as_then), measured)
    return costs


def speed_of_flights(num_workers: int, num_ps: int, seconds: float) -> JobSpeed:
    """Run the job of the flights for some seconds."""
    flags = [f"--model_def={FLIGHTS_MODEL}", *FLIGHTS_FLAGS]
    with running_job(flags, num_workers, num_ps) as job_dir:
        prefer(job_dir)
        before = reading(job_dir)
        time.sleep(seconds)
        return speed_between(before, reading(job_dir), CORES, is_first=True)


def of_replicas(num: int) -> str:
    """Name the row of a number of ps replicas."""
    return f"ps replicas: {num}, 1 worker, processor time"


def replicas(pairs: Pairs, seconds: float) -> Costs:
    """Calibrate, then predict and measure what a record costs with some numbers of ps replicas."""
    costs = calibrate(FLIGHTS_MODEL, FLIGHTS_FLAGS, seconds, prefer)
    for num in REPLICAS:
        speed = speed_of_flights(1, num, seconds)
        frames = (num - 1) * (2 * costs.worker_frame + costs.ps_frame)
        predicted = (costs.per_minibatch + frames) / costs.minibatch_size
        measured = speed.own_cores / speed.rate / costs.minibatch_size
        note(pairs, of_replicas(num), 1e6 * predicted, 1e6 * measured)
    return costs


def chaos(pairs: Pairs, seconds: float) -> Costs:
    """Calibrate with the data of `make chaos`; predict and measure its job, also with kills."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        quiet = Path(folder, "quiet")
        with preferred(quiet):
            record = run_chaos(CHAOS_SEED, [], quiet, Console(file=sys.stderr))
        costs = calibrate(
            "counting.model.forward",
            [
                *("--model_zoo=model_zoo", f"--training_data={quiet / 'data'}"),
                f"--minibatch_size={MINIBATCH_SIZE}",
                f"--num_minibatches_per_task={MINIBATCHES_PER_TASK}",
                *(f"--{name}={value}" for name, value in record.flags.items()),
            ],
            seconds,
            prefer,
        )
        struck = Path(folder, "struck")
        with preferred(struck):
            killed = run_chaos(CHAOS_SEED, list(KILLS), struck, Console(file=sys.stderr))
        speeds = {}
        for name, place, of in (("no fault", quiet, record), (KILLED, struck, killed)):
            predicted, measured = predicted_of(costs, of), counted_per_second(place)
            note(pairs, f"make chaos, {name}", predicted, measured)
            speeds[name] = predicted, measured
        (whole, was_whole), (less, was_less) = speeds.values()
        note(pairs, GOODPUT, 100 * less / whole, 100 * was_less / was_whole)
    return costs


def predicted_of(costs: Costs, record: Record) -> float:
    """Return the records/s that a job of `make chaos` would have, with the kills that it had."""
    cluster = Cluster(workers=NUM_WORKERS, ps=NUM_PS, shared_cores=CORES * LEFT)
    trace = run(costs, cluster, MINIBATCHES, deaths_of(record, MINIBATCHES))
    say(f"  {trace.lost} minibatches are taken up again; a start is {costs.start:.2f} s of a core")
    return MINIBATCHES * MINIBATCH_SIZE / trace.trained[-1]


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
    for pid in psutil.pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue  # it has ended
        if str(folder) not in command:
            continue
        for thread in threads_of(pid):
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
