"""How long the steps of a large model stop when a worker joins by all-reduce.

A vector of 25 million numbers on NumPy (100 MB, 300 MB with Adam's slots) in two worker processes
of this machine, to which a third one comes, again and again. Measured are, for each join:

- the longest time between two updates of those who have the parameters, from the moment in which
  the world of three is agreed on until five updates after the joiner has them;
- how long the joiner takes to have them.

Two ways take turns, a job each: the parameters are given beside the steps ("ours"), as they are
to joiners of large models; and before the first round ("peer"), as they are to those of small ones.

    make bench-join                 # or python benchmarks/allreduce_join.py [--short]
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from allreduce_recovery import Job, job_of
from report import Side, asked_for_short, compare, write_results

from elasticdl.observe.events import read_events

NUM_NUMBERS, SHORT_NUMBERS = 25_000_000, 4_000_000
NUM_UPDATES = 5  # of a world before the next change, and after a joiner has the parameters
MOST_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Joins:
    """What was measured of one way, by join.

    pauses: the longest time between two updates. seconds: from the world to the parameters.
    steps: the usual time between two updates before. num_steps: updates while they were given.
    """

    pauses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    num_steps: list[int] = field(default_factory=list)


def main() -> None:
    """Measure and write `benchmarks/results/allreduce_join.json`."""
    short = asked_for_short(__doc__)
    turns, joins_of_a_turn = (1, 1) if short else (3, 3)
    num_numbers = SHORT_NUMBERS if short else NUM_NUMBERS
    ways = {"beside": Joins(), "at once": Joins()}
    for turn, (way, found) in itertools.product(range(turns), ways.items()):
        measure(way == "at once", num_numbers, joins_of_a_turn, found)
        print(f"turn {turn + 1}, {way}: {found.pauses[-joins_of_a_turn:]}", file=sys.stderr)
    ours, peer = ways.values()
    rows = [
        compare(what, "s", Side(tuple(a), False), Side(tuple(b), False))
        for what, a, b in (
            ("join: longest time between two steps", ours.pauses, peer.pauses),
            ("join: until the joiner has the parameters", ours.seconds, peer.seconds),
        )
    ]
    notes = {
        "ours": "given beside the steps",
        "peer": "given before the first round",
        "megabytes of parameters and slots": 12 * num_numbers / 1e6,
        "worst_seconds": {"beside": max(ours.pauses), "at once": max(peer.pauses)},
        "median seconds of a step before": statistics.median(ours.steps + peer.steps),
        "steps while the parameters were given": ours.num_steps,
    }
    write_results("allreduce_join", rows, notes, keep=not short)


def measure(is_at_once: bool, num_numbers: int, num_joins: int, found: Joins) -> None:
    """Run a job; have a third worker join, and leave again, so many times."""
    environment = {"JOIN_NUMBERS": str(num_numbers), "JOIN_AT_ONCE": str(int(is_at_once))}
    flags = {"num_workers": 2, "recovery_seconds": 36_000}
    with job_of(num_joins, "join_model.forward", environment, "JOIN_NOTES", **flags) as job:
        for _ in range(num_joins):
            _wait_for_updates(job, _wait_for_world(job, 2))
            num_given = len(_given(job))
            job.master.set_num_workers(3)
            agreed = _wait_for_world(job, 3)
            _wait(lambda n=num_given: len(_given(job)) > n, "the joiner has no parameters")
            given = max(_given(job))
            _wait_for_updates(job, given)
            _take_in(_updates(job), agreed, given, found)
            job.master.set_num_workers(2)


def _take_in(updates: list[float], agreed: float, given: float, found: Joins) -> None:
    end = [at for at in updates if at > given][NUM_UPDATES - 1]
    gaps = [(b - a, b) for a, b in itertools.pairwise(updates)]
    found.pauses.append(max(gap for gap, at in gaps if agreed <= at <= end))
    found.steps.append(statistics.median(gap for gap, at in gaps if at < agreed))
    found.seconds.append(given - agreed)
    found.num_steps.append(sum(agreed <= at <= given for at in updates))


def _updates(job: Job) -> list[float]:
    """Return when each version was there first."""
    first: dict[int, float] = {}
    for line in _lines(job, "updates-*"):
        at, version = line.split()
        first[int(version)] = min(float(at), first.get(int(version), float(at)))
    return sorted(first.values())


def _given(job: Job) -> list[float]:
    return [float(line) for line in _lines(job, "given-*")]


def _lines(job: Job, pattern: str) -> list[str]:
    texts = [file.read_text() for file in job.folder.glob(pattern)]
    return [line for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]


def _wait_for_world(job: Job, size: int) -> float:
    """Wait until the newest world has so many workers; return when it was agreed on."""

    def newest() -> tuple[int, float]:
        worlds = [e for e in read_events(job.folder / "job") if e["event"] == "world"]
        return (len(worlds[-1]["workers"]), float(worlds[-1]["time"])) if worlds else (0, 0.0)

    _wait(lambda: newest()[0] == size, f"no world of {size} workers")
    return newest()[1]


def _wait_for_updates(job: Job, since: float) -> None:
    """Wait for some updates after a moment."""
    _wait(lambda: sum(at > since for at in _updates(job)) >= NUM_UPDATES, "no steps are made")


def _wait(is_true: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + MOST_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            raise SystemExit(f"{problem} after {MOST_SECONDS:.0f} s")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
