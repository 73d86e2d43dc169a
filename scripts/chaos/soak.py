"""Runs many jobs with random faults. A fault that no job has tested is a failure too."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from .judge import NOT_DONE
from .run import Record, run

KINDS = (
    *("worker", "worker", "ps", "ps", "master", "ps-again", "ps-all", "add"),
    *("worker+ps", "ps+master", "worker+master"),
    *("worker-stop", "worker-returns", "ps-stop", "master-stop"),
    *("worker@pending", "ps@pending", "master@pending"),
    *("worker@evaluating", "ps@evaluating", "master@evaluating"),
    *("worker@exporting", "ps@exporting", "master@exporting"),
    *("ps@checkpointing", "master@checkpointing"),
    *("ps@auditing", "master@auditing"),
)
"""What is drawn from: each of them once before any comes again."""

WITHOUT_PS = ("worker", "worker", "add", "master", "worker+master", "worker-stop")
"""For synchronous jobs: without a lost replica every average is known."""

_LONGEST = 1.5  # of the minutes
MODES = ("async", "async", "async", "async", "bounded", "synchronous", "latest")


class Deck:
    """Draws without replacement, and begins again when all are drawn."""

    def __init__(self, cards: Sequence[str], rng: random.Random) -> None:
        self._cards, self._rng = cards, rng
        self._left: list[str] = []

    def draw(self) -> str:
        """Return the next item."""
        if not self._left:
            self._left = self._rng.sample(self._cards, len(self._cards))
        return self._left.pop()

    def put_back(self, card: str) -> None:
        """Put back an item that was not used, so that it is drawn next."""
        self._left.append(card)


def soak(seed: int, minutes: float, directory: Path, path: Path | None, console: Console) -> int:
    """Run jobs with random faults for some minutes; return the exit code.

    It takes up to half as long again if some fault is still untested.
    """
    rng = random.Random(seed)
    modes, faults = Deck(MODES, rng), Deck(KINDS, rng)
    without_ps, lost_ps = Deck(WITHOUT_PS, rng), Deck(("ps", "worker"), rng)
    records: list[Record] = []
    begun = time.monotonic()

    def goes_on() -> bool:
        share = (time.monotonic() - begun) / (60 * minutes)
        is_due = share < 1 or (share < _LONGEST and bool(summarise(records)["untested"]))
        return is_due and not any(map(wrong, records))

    while goes_on():
        mode = modes.draw()
        deck = {"synchronous": without_ps, "latest": lost_ps}.get(mode, faults)
        kinds = [deck.draw() for _ in range(2 if mode == "latest" else rng.randint(2, 5))]
        round_seed = seed * 1000 + len(records)
        console.rule(f"seed {round_seed}, {mode}: {', '.join(kinds)}")
        folder = directory / str(round_seed)
        folder.mkdir(parents=True)
        recovery = "latest" if mode == "latest" else "replay"
        mode = "async" if mode == "latest" else mode
        records.append(run(round_seed, kinds, folder, console, mode, recovery))
        for kind in not_carried_out(records[-1]):
            deck.put_back(kind)
        if not wrong(records[-1]):
            shutil.rmtree(folder)
    report = summarise(records)
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n")
    console.print(
        f"{report['jobs']} jobs, {report['processes_struck']} processes killed or stopped; "
        f"ps replica killed to training again: {report['training_again_seconds']}"
    )
    for problem in [*report["problems"], *report["untested"]]:
        console.print(f"[red]{problem}")
    is_exact = not report["problems"]
    console.print("[green]every count is exact" if is_exact else "[red]NOT exact")
    return 0 if is_exact and not report["untested"] else 1


def wrong(record: Record) -> list[str]:
    """Return the problems of a job, without the faults that came too late to happen.

    Such a fault counts as untested: another job must test it.
    """
    return [problem for problem in record.problems if not problem.startswith(NOT_DONE)]


def not_carried_out(record: Record) -> set[str]:
    """Return the kinds of a job's faults that did not happen, such as late ones."""
    late = (p.removeprefix(f"{NOT_DONE}: ") for p in record.problems if p.startswith(NOT_DONE))
    return {problem.partition(":")[0] for problem in late}


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Return a summary of the jobs, the tested faults and the problems."""
    counters: Counter[str] = Counter()
    for record in records:
        counters.update(record.counters)
        for name in record.counters:
            counters[name] += 0  # one that stays 0 is there too
    struck: Counter[str] = Counter()
    for record in records:
        if not wrong(record):
            late = not_carried_out(record)
            struck.update(s.kind for s in record.struck if s.kind not in late)
    pauses = [seconds for record in records for seconds in record.training_again_seconds]
    untested = [f"no job has tested {kind}" for kind in sorted({*KINDS} - {*struck})]
    untested += [] if counters else ["no job has counters"]
    untested += [f"the counter {name} has stayed 0" for name, n in counters.items() if not n]
    return {
        "machine": {"cores": os.cpu_count(), "system": platform.platform()},
        "jobs": len(records),
        "seconds": round(sum(record.seconds for record in records), 1),
        "processes_struck": sum(len(s.victims) for r in records for s in r.struck),
        "struck": dict(sorted(struck.items())),
        "counters": dict(counters),
        "recoveries": sum(len(record.recoveries) for record in records),
        "training_again_seconds": {
            "median": round(statistics.median(pauses), 2) if pauses else None,
            "worst": round(max(pauses), 2) if pauses else None,
        },
        "untested": untested,
        "problems": [f"seed {r.seed}: {problem}" for r in records for problem in wrong(r)],
        "not_carried_out": sum(p.startswith(NOT_DONE) for r in records for p in r.problems),
        "runs": [_short(record) for record in records],
    }


def _short(record: Record) -> dict[str, Any]:
    return {
        "seed": record.seed,
        "mode": record.mode,
        "flags": {n: v for n, v in record.flags.items() if not n.endswith(("_dir", "_data"))},
        "seconds": round(record.seconds, 1),
        "struck": [
            f"{s.kind} at {s.share:.0%}, {s.phase}: {len(s.victims)} processes"
            for s in record.struck
        ],
        "counters": record.counters,
        "recoveries": record.recoveries,
    }
