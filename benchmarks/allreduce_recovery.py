"""How long a job of all-reduce takes to go on when one of three workers is killed, leaves or joins.

A network of 100,000 parameters on NumPy, with Adam, on three worker processes of this machine. Each
worker notes when it has made an update, and in which world. Measured are:

- kill: from `kill -9` of a worker to the next update of the others without it;
- leave: the time without updates around the moment in which a worker that was asked to end
  (SIGTERM) is gone;
- join: the same for the moment in which its successor is admitted, parameters and all.

    python benchmarks/allreduce_recovery.py [--short]
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from report import Row, Side, asked_for_short, compare, write_results

from elasticdl._core import RecordWriter
from elasticdl.observe.events import read_events
from scripts.chaos.job import connect

NUM_WORKERS = 3
NUM_RECORDS = 200_000
STEPS_BEFORE = 30  # of a whole world, before the next blow
MOST_SECONDS = 120.0  # to wait for a whole world
TARGET_SECONDS = 1.0


class Steps:
    """What the workers have noted; of each world the first and the last update is kept."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.first: dict[int, float] = {}
        self.last: dict[int, float] = {}
        self.num: dict[int, int] = {}

    def read(self) -> None:
        """Take in what is new."""
        for file in self._folder.glob("steps-*"):
            with file.open("rb") as lines:
                lines.seek(self._offsets.get(file, 0))
                found = lines.read()
            whole = found[: found.rfind(b"\n") + 1]
            self._offsets[file] = self._offsets.get(file, 0) + len(whole)
            for line in whole.splitlines():
                time_of_step, number, _ = line.split()
                at, world = float(time_of_step), int(number)
                self.first[world] = min(at, self.first.get(world, at))
                self.last[world] = max(at, self.last.get(world, at))
                self.num[world] = self.num.get(world, 0) + 1

    def first_after(self, world: int) -> float:
        """Return when the first update of a later world was made."""
        return min(at for later, at in self.first.items() if later > world)

    def pause_before(self, world: int) -> float:
        """Return the seconds without an update before the first one of a world, or of a later."""
        first = min(at for later, at in self.first.items() if later >= world)
        return first - max(at for earlier, at in self.last.items() if earlier < world)


class Job:
    """The job, as the driver sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = Steps(folder)

    def worlds(self) -> dict[int, tuple[int, ...]]:
        """Return the members of each world so far."""
        events = read_events(self.folder / "job")
        return {e["world"]: tuple(e["workers"]) for e in events if e["event"] == "world"}

    def wait_until_whole(self) -> int:
        """Wait for a world of all workers that has made some steps; return its number."""
        deadline = time.monotonic() + MOST_SECONDS
        while time.monotonic() < deadline:
            worlds = self.worlds()
            newest = max(worlds, default=0)
            is_whole = newest > 0 and len(worlds[newest]) == NUM_WORKERS
            self.steps.read()
            if is_whole and self.steps.num.get(newest, 0) >= STEPS_BEFORE * NUM_WORKERS:
                return newest
            time.sleep(0.05)
        raise SystemExit(f"no world of {NUM_WORKERS} workers in {MOST_SECONDS:.0f} s")

    def strike(self, world: int, number: signal.Signals) -> float:
        """Send a signal to a member of a world; return when."""
        victim = random.choice(self.worlds()[world])
        pids = {
            event["process"]: event["pid"]
            for event in read_events(self.folder / "job")
            if event["event"] == "registered"
        }
        at = time.time()
        os.kill(pids[f"worker {victim}"], number)
        return at


def main() -> None:
    """Measure and write `benchmarks/results/allreduce_recovery.json`."""
    short = asked_for_short(__doc__)
    times = 2 if short else 20
    kills: list[float] = []
    leaves: list[float] = []
    joins: list[float] = []
    with job_of(times) as job:
        for number, signal_number in enumerate([signal.SIGKILL, signal.SIGTERM] * times):
            world = job.wait_until_whole()
            at = job.strike(world, signal_number)
            whole = world
            while whole <= world:
                whole = job.wait_until_whole()
            without = next(w for w in sorted(job.worlds()) if w > world)
            if signal_number is signal.SIGKILL:
                kills.append(job.steps.first_after(world) - at)
            else:
                leaves.append(job.steps.pause_before(without))
            joins.append(job.steps.pause_before(whole))
            print(f"{number + 1}: {signal_number.name}", file=sys.stderr)
    rows = [
        _row("kill -9: to the next step of the others", kills),
        _row("leave: time without steps", leaves),
        _row("join: time without steps", joins),
    ]
    notes = {
        "workers": NUM_WORKERS,
        "kills": len(kills),
        "target: median seconds after a kill": TARGET_SECONDS,
        "worst_seconds": {"kill": max(kills), "leave": max(leaves), "join": max(joins)},
    }
    write_results("allreduce_recovery", rows, notes, keep=not short)


def _row(what: str, seconds: list[float]) -> Row:
    return compare(what, "s", Side(tuple(seconds), higher_is_better=False))


@contextmanager
def job_of(times: int) -> Iterator[Job]:
    """Run a job that lasts until the block ends."""
    root = Path(__file__).parent
    with tempfile.TemporaryDirectory(prefix="elasticdl-recovery-") as scratch:
        folder = Path(scratch)
        with RecordWriter(str(folder / "data.recordio")) as writer:
            writer.write_many(str(number).encode() for number in range(NUM_RECORDS))
        flags = {
            "model_zoo": root,
            "model_def": "recovery_model.forward",
            "training_data": folder / "data.recordio",
            "distribution_strategy": "AllreduceStrategy",
            "num_workers": NUM_WORKERS,
            "num_epochs": 1_000,
            "job_dir": folder / "job",
            "max_relaunches": 10 + 2 * times,
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "elasticdl.cli.main", "train", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"ELASTICDL_STEPS": str(folder), "OMP_NUM_THREADS": "1"},
            )
            try:
                master = connect(folder / "job", process)
                if master is None:
                    raise SystemExit((folder / "log").read_text())
                yield Job(folder)
                master.stop("measured")
                master.close()
                process.wait(timeout=60)
            finally:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
