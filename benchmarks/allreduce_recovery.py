"""The time without updates when one of three all-reduce workers is killed, leaves or joins.

A network of 100,000 parameters on NumPy, with Adam, on three worker processes of this machine. Each
worker notes the time and the world of each update. The benchmark measures:

- kill: from `kill -9` of a worker to the next update of the others without it;
- leave: the time without updates when a worker ends after SIGTERM;
- join: the time without updates when its successor joins and gets the parameters.

The peer for kills is the same network on DistributedDataParallel under torchrun, which starts all
three workers again when one is killed (`peers/torchrun_steps.py`; c10d rendezvous, gloo, a
checkpoint every ten updates). The two take turns, five times: four kills of ours, one of theirs.

    make bench ONLY=allreduce_recovery      # or python benchmarks/allreduce_recovery.py [--short]
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from report import Row, Side, asked_for_short, compare, write_results
from steps import Steps

from elasticdl._core import RecordWriter
from elasticdl.observe.events import read_events
from elasticdl.rpc.client import JobClient
from scripts.chaos.job import connect

NUM_WORKERS = 3
NUM_RECORDS = 200_000
STEPS_BEFORE = 30  # of a whole world, before the next blow
MOST_SECONDS = 120.0  # to wait for a whole world
TARGET_SECONDS = 1.0
# Otherwise workers that torchrun starts again find addresses of earlier workers in the store of its
# rendezvous, and fail (seen with PyTorch 2.15).
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Job:
    """The job, as the driver sees it."""

    def __init__(self, folder: Path, master: JobClient) -> None:
        self.folder = folder
        self.master = master
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
    turns, kills_of_a_turn = (1, 2) if short else (5, 4)
    has_torch = find_spec("torch") is not None
    if not has_torch:
        print("PyTorch is not installed, so torchrun is left out", file=sys.stderr)
    ours, torchrun = Pauses(), []
    for turn in range(turns):
        with job_of(kills_of_a_turn) as job:
            strike_by_turns(job, kills_of_a_turn, ours)
        if has_torch:
            torchrun.append(seconds_to_restart())
            print(f"torchrun {turn + 1}: {torchrun[-1]:.2f} s", file=sys.stderr, flush=True)
    peer = Side(tuple(torchrun), higher_is_better=False) if torchrun else None
    rows = [
        _row("kill -9: to the next step of the others; of torchrun: of all", ours.kills, peer),
        _row("leave: time without steps", ours.leaves),
        _row("join: time without steps", ours.joins),
    ]
    notes = {
        "workers": NUM_WORKERS,
        "kills": len(ours.kills),
        "target: median seconds after a kill": TARGET_SECONDS,
        "worst_seconds": {
            "kill": max(ours.kills),
            "leave": max(ours.leaves),
            "join": max(ours.joins),
            **({"torchrun": max(torchrun)} if torchrun else {}),
        },
    }
    write_results("allreduce_recovery", rows, notes, keep=not short)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds without steps, by cause."""

    kills: list[float] = field(default_factory=list)
    leaves: list[float] = field(default_factory=list)
    joins: list[float] = field(default_factory=list)


def strike_by_turns(job: Job, times: int, pauses: Pauses) -> None:
    """Kill a worker, then ask one to end, so many times; note how long steps stopped."""
    for signal_number in [signal.SIGKILL, signal.SIGTERM] * times:
        world = job.wait_until_whole()
        at = job.strike(world, signal_number)
        whole = world
        while whole <= world:
            whole = job.wait_until_whole()
        without = next(w for w in sorted(job.worlds()) if w > world)
        if signal_number is signal.SIGKILL:
            pauses.kills.append(job.steps.first_after(world) - at)
        else:
            pauses.leaves.append(job.steps.pause_before(without))
        pauses.joins.append(job.steps.pause_before(whole))
        print(f"{len(pauses.joins)}: {signal_number.name}", file=sys.stderr, flush=True)


def _row(what: str, seconds: list[float], peer: Side | None = None) -> Row:
    return compare(what, "s", Side(tuple(seconds), higher_is_better=False), peer)


@contextmanager
def job_of(
    times: int,
    model: str = "recovery_model.forward",
    environment: Mapping[str, str] | None = None,
    notes: str = "ELASTICDL_STEPS",
    **more: object,
) -> Iterator[Job]:
    """Run a job that lasts until the block ends.

    Args:
        times: How often workers are lost, by request or not.
        model: In this folder.
        environment: The environment of the job's processes.
        notes: The variable of it that names the folder for what workers note.
        more: Flags.
    """
    root = Path(__file__).parent
    with tempfile.TemporaryDirectory(prefix="elasticdl-recovery-") as scratch:
        folder = Path(scratch)
        with RecordWriter(str(folder / "data.recordio")) as writer:
            writer.write_many(str(number).encode() for number in range(NUM_RECORDS))
        flags = {
            "model_zoo": root,
            "model_def": model,
            "training_data": folder / "data.recordio",
            "distribution_strategy": "AllreduceStrategy",
            "num_workers": NUM_WORKERS,
            "num_epochs": 1_000,
            "job_dir": folder / "job",
            "max_relaunches": 10 + 2 * times,
            **more,
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "elasticdl.cli.main", "train", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ
                | {notes: str(folder), "OMP_NUM_THREADS": "1"}
                | dict(environment or {}),
            )
            try:
                master = connect(folder / "job", process)
                if master is None:
                    raise SystemExit((folder / "log").read_text())
                yield Job(folder, master)
                master.stop("measured")
                master.close()
                process.wait(timeout=60)
            finally:
                process.kill()
                process.wait()


# --- the peer -------------------------------------------------------------------------------------


def seconds_to_restart() -> float:
    """Run three workers under torchrun, kill one; return the seconds to the next step of any."""
    with tempfile.TemporaryDirectory(prefix="torchrun-recovery-") as scratch:
        folder = Path(scratch)
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1"),
            *(f"--nproc_per_node={NUM_WORKERS}", "--max_restarts=3"),
            *("--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"),
            *(str(Path(__file__).parent / "peers" / "torchrun_steps.py"), str(folder)),
        ]
        with (folder / "log").open("w") as log:
            agent = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | OWN_STORE,
            )
        try:
            steps = Steps(folder)
            _wait_for_steps(steps, 0, agent, folder)
            victim = int(random.choice(list(folder.glob("steps-*"))).name.partition("-")[2])
            at = time.time()
            os.kill(victim, signal.SIGKILL)
            _wait_for_steps(steps, 1, agent, folder)
            return steps.first_after(0) - at
        finally:
            agent.terminate()  # it ends its workers too
            try:
                agent.wait(timeout=60)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


def _wait_for_steps(steps: Steps, world: int, agent: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until all workers have made some steps since torchrun has started them so often."""
    deadline = time.monotonic() + MOST_SECONDS
    while steps.num.get(world, 0) < STEPS_BEFORE * NUM_WORKERS:
        if agent.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"torchrun makes no steps:\n{(folder / 'log').read_text()}")
        time.sleep(0.05)
        steps.read()


if __name__ == "__main__":
    main()
