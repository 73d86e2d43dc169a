"""How long the steps of a large model stop when a worker joins by all-reduce, and what for.

A vector of 25 million numbers on NumPy (100 MB, 300 MB with Adam's slots) in two worker processes
of this machine, to which a third one comes, again and again. Measured are, for each join:

- the longest time between two updates of those who have the parameters, from the moment in which
  the world of three is agreed on until five updates after the joiner has them;
- what that time went to, on the path that all waited for (`join_path.py`);
- how long the joiner takes to have the parameters.

Two ways take turns, a job each: the parameters are given beside the steps ("ours"), as they are
to joiners of large models; and before the first round ("peer"), as they are to those of small ones.

The **control** is measured before the joins, in each job: the time between two updates of the two
workers while a process that is no part of the job computes on the same cores, on memory of the
size of a worker's (`join_neighbour.py`). What a join adds to that is what it costs beside its
processor time.

    make bench-join                 # or python benchmarks/allreduce_join.py [--short]
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from allreduce_recovery import Job, job_of
from join_path import Interval, Share, merged, slowest_path
from report import Side, asked_for_short, compare, write_results

from elasticdl.observe.events import read_events

NUM_NUMBERS, SHORT_NUMBERS = 25_000_000, 4_000_000
NUM_UPDATES = 5  # of a world before the next change, and after a joiner has the parameters
NUM_CONTROL = 12  # updates beside a neighbour
MOST_SECONDS = 180.0
BUDGET_SECONDS = 225.0  # of all turns, which take about as long as each other


@dataclass(frozen=True, slots=True)
class Joins:
    """What was measured of one way.

    pauses: by join, the longest time between two updates. paths: what it went to.
    seconds: by join, from the world to the parameters.
    steps: by join, the usual time between two updates before. given: the same while they were
        given; after: the same of three workers. num_steps: updates while they were given.
    controls: by job, the usual time beside a neighbour; worst_controls: the longest.
    """

    pauses: list[float] = field(default_factory=list)
    paths: list[dict[str, Share]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    given: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    num_steps: list[int] = field(default_factory=list)
    controls: list[float] = field(default_factory=list)
    worst_controls: list[float] = field(default_factory=list)


def main() -> None:
    """Measure and write `benchmarks/results/allreduce_join.json`."""
    short = asked_for_short(__doc__)
    turns, joins_of_a_turn = (1, 1) if short else (3, 3)
    num_numbers = SHORT_NUMBERS if short else NUM_NUMBERS
    ways = {"beside": Joins(), "at once": Joins()}
    began = time.monotonic()
    for turn in range(turns):
        if turn and (time.monotonic() - began) * (turn + 1) / turn > BUDGET_SECONDS:
            break  # another would take too long, and what is measured by now is enough
        for way, found in ways.items():
            measure(way == "at once", num_numbers, joins_of_a_turn, found)
            print(
                f"turn {turn + 1}, {way}: {found.pauses[-joins_of_a_turn:]}",
                file=sys.stderr,
                flush=True,
            )
    ours, peer = ways.values()
    rows = [
        compare(what, "s", Side(tuple(a), False), Side(tuple(b), False))
        for what, a, b in (
            ("join: longest time between two steps", ours.pauses, peer.pauses),
            ("join: until the joiner has the parameters", ours.seconds, peer.seconds),
            ("control: longest time between two steps", ours.worst_controls, peer.worst_controls),
            ("usual step, two workers", ours.steps, peer.steps),
            ("usual step, control: beside a process that computes", ours.controls, peer.controls),
            ("usual step, three workers", ours.after, peer.after),
        )
    ]
    rows.append(
        compare("usual step while a joiner is given pieces", "s", Side(tuple(ours.given), False))
    )
    paths = {way: merged(found.paths) for way, found in ways.items()}
    notes = {
        "ours": "given beside the steps",
        "peer": "given before the first round",
        "megabytes of parameters and slots": 12 * num_numbers / 1e6,
        "worst_seconds": {"beside": max(ours.pauses), "at once": max(peer.pauses)},
        "longest time at a join, in usual steps of the control": {
            way: round(statistics.median(found.pauses) / statistics.median(found.controls), 2)
            for way, found in ways.items()
        },
        "steps while the parameters were given": ours.num_steps,
        "what the longest time at a join went to, means": paths,
    }
    for way, path in paths.items():
        print(f"{way}: what the longest time between two steps at a join went to")
        for what, share in path.items():
            seconds, processor, faults = share.values()
            print(f"  {what}: {seconds:.3f} s, {processor:.3f} of processor, {faults:.0f} faults")
    write_results("allreduce_join", rows, notes, keep=not short)


def measure(is_at_once: bool, num_numbers: int, num_joins: int, found: Joins) -> None:
    """Run a job; have a third worker join, and leave again, so many times."""
    environment = {"JOIN_NUMBERS": str(num_numbers), "JOIN_AT_ONCE": str(int(is_at_once))}
    flags = {"num_workers": 2, "recovery_seconds": 36_000}
    with job_of(num_joins, "join_model.forward", environment, "JOIN_NOTES", **flags) as job:
        _wait_for_updates(job, _wait_for_world(job, 2))
        with neighbour(num_numbers) as began:
            _wait_for_updates(job, began, NUM_CONTROL)
            steps = _steps(job, began, time.time())
        found.controls.append(statistics.median(steps))
        found.worst_controls.append(max(steps))
        for _ in range(num_joins):
            _wait_for_updates(job, max(_wait_for_world(job, 2), time.time()))
            num_given = len(_given(job))
            job.master.set_num_workers(3)
            agreed = _wait_for_world(job, 3)
            _wait(lambda n=num_given: len(_given(job)) > n, "the joiner has no parameters")
            given = max(_given(job))
            _wait_for_updates(job, given)
            _take_in(job, agreed, given, found)
            job.master.set_num_workers(2)


@contextmanager
def neighbour(num_numbers: int) -> Iterator[float]:
    """Have another process compute; gives the time since when."""
    file = Path(__file__).parent / "join_neighbour.py"
    command = [sys.executable, str(file), str(num_numbers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
            yield time.time()
        finally:
            process.kill()


def _take_in(job: Job, agreed: float, given: float, found: Joins) -> None:
    updates = _updates(job)
    moments = sorted(updates)
    end = [at for at in moments if at > given][NUM_UPDATES - 1]
    gaps = [(b - a, a, b) for a, b in itertools.pairwise(moments) if agreed <= b <= end]
    pause, since, until = max(gaps)
    found.pauses.append(pause)
    found.paths.append(slowest_path(_timelines(job), updates[until], since, until))
    found.seconds.append(given - agreed)
    found.num_steps.append(sum(agreed <= at <= given for at in moments))
    found.steps.append(statistics.median(_steps(job, 0, agreed)[-NUM_UPDATES:]))
    found.after.append(statistics.median(_steps(job, given, end)))
    # Of the first step in the world of three the forming of it is a part.
    found.given.append(statistics.median(_steps(job, agreed, given)[1:] or [pause]))


def _steps(job: Job, since: float, until: float) -> list[float]:
    """Return the times between the updates between two moments."""
    moments = sorted(at for at in _updates(job) if since <= at <= until)
    return [b - a for a, b in itertools.pairwise(moments)]


def _updates(job: Job) -> dict[float, str]:
    """Return when each version was there first, and the worker that had it."""
    first: dict[int, tuple[float, str]] = {}
    for worker, line in _lines(job, "updates-*"):
        at, version = line.split()
        now = (float(at), worker)
        first[int(version)] = min(now, first.get(int(version), now))
    return dict(first.values())


def _given(job: Job) -> list[float]:
    return [float(line) for _, line in _lines(job, "given-*")]


def _timelines(job: Job) -> dict[str, list[Interval]]:
    found: dict[str, list[Interval]] = {}
    for worker, line in _lines(job, "timeline-*"):
        found.setdefault(worker, []).append(Interval(*json.loads(line)))
    return found


def _lines(job: Job, pattern: str) -> list[tuple[str, str]]:
    """Return the whole lines of all workers, with the worker's process."""
    found = []
    for file in job.folder.glob(pattern):
        text, worker = file.read_text(), file.name.partition("-")[2]
        found += [(worker, line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return found


def _wait_for_world(job: Job, size: int) -> float:
    """Wait until the newest world has so many workers; return when it was agreed on."""

    def newest() -> tuple[int, float]:
        worlds = [e for e in read_events(job.folder / "job") if e["event"] == "world"]
        return (len(worlds[-1]["workers"]), float(worlds[-1]["time"])) if worlds else (0, 0.0)

    _wait(lambda: newest()[0] == size, f"no world of {size} workers")
    return newest()[1]


def _wait_for_updates(job: Job, since: float, number: int = NUM_UPDATES) -> None:
    """Wait for some updates after a moment."""
    _wait(lambda: sum(at > since for at in _updates(job)) >= number, "no steps are made")


def _wait(is_true: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + MOST_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            raise SystemExit(f"{problem} after {MOST_SECONDS:.0f} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
