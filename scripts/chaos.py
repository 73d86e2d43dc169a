"""Kills processes of a real job at random moments and proves that every count is exact.

The job trains `model_zoo/counting`: each row ends as the number of times its id was trained. After
the kills the exported rows must equal epochs x occurrences of every id, and the job's own ledger
must say that no record was repeated or lost. Exit code 0 only if both are so. With
--ps_recovery=latest what is missing must be exactly what the job says was lost.

    python scripts/chaos.py --seed 7                    # all kinds of faults
    python scripts/chaos.py --seed 7 --faults worker    # a worker killed with -9
    python scripts/chaos.py --seed 7 --mode synchronous # gradients of 3 workers are averaged
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from elasticdl._core import RecordWriter
from elasticdl.job import JobStatus
from elasticdl.process import TOKEN_FILE, read_token
from elasticdl.rpc.client import JobClient

ROOT = Path(__file__).resolve().parent.parent
NUM_WORKERS, NUM_PS, NUM_EPOCHS = 3, 2, 3
NUM_RECORDS, IDS_PER_RECORD, NUM_IDS = 48_000, 4, 5_000
FAULTS = ("worker", "master", "add", "ps", "ps-again", "ps-all")
MAX_STALENESS = 3
MODES: dict[str, dict[str, object]] = {
    "async": {},
    "bounded": {"max_staleness": MAX_STALENESS},
    # The average of gradients moves a row by a share of one: ids occur once, and only signs count.
    "synchronous": {"use_async": "false", "optimizer": "sign_optimizer"},
}
# Where a lost ps replica starts from: seconds or updates between checkpoints.
SOAK_FAULTS = ("worker", "worker", "ps", "ps", "ps-again", "ps-all", "master")
_SUCCESSOR_SECONDS = 30.0
CHECKPOINTS = ({"recovery_seconds": 0}, {"recovery_seconds": 1}, {"checkpoint_steps": 500})


@dataclass(slots=True)
class Record:
    """What was done to one job, and what came of it."""

    seed: int
    flags: dict[str, str]
    killed: list[tuple[float, str]]  # share of the records trained, what was done
    began: float
    seconds: float = 0.0
    recoveries: list[dict] = field(default_factory=list)
    training_again_seconds: list[float] = field(default_factory=list)
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """Something to do to the job once a share of all its records is trained."""

    at: float
    kind: str


def plan(rng: random.Random, kinds: list[str]) -> list[Fault]:
    """Draw when each fault happens: between 5 and 85 % of the records."""
    return sorted((Fault(rng.uniform(0.05, 0.85), kind) for kind in kinds), key=lambda f: f.at)


def make_data(directory: Path, seed: int, mode: str = "async") -> np.ndarray:
    """Write records of ids into two files; return how often each id occurs."""
    rng = np.random.default_rng(seed)
    if mode == "synchronous":
        ids = rng.permutation(NUM_RECORDS * IDS_PER_RECORD).reshape(NUM_RECORDS, IDS_PER_RECORD)
    else:  # skewed
        ids = (NUM_IDS * rng.random((NUM_RECORDS, IDS_PER_RECORD)) ** 3).astype(np.int64)
    for part, rows in enumerate(np.array_split(ids, 2)):
        with RecordWriter(str(directory / f"part-{part}.recordio")) as writer:
            for row in rows:
                writer.write(" ".join(map(str, row)).encode())
    return np.bincount(ids.ravel(), minlength=NUM_IDS)


def train_command(
    data: Path, output: Path, job_dir: Path, summary: Path, **others: object
) -> list[str]:
    """Return the command line of the job."""
    flags: dict[str, object] = {
        "model_zoo": ROOT / "model_zoo",
        "model_def": "counting.model.forward",
        "training_data": data,
        "distribution_strategy": "ParameterServerStrategy",
        "num_workers": NUM_WORKERS,
        "num_ps_pods": NUM_PS,
        "num_epochs": NUM_EPOCHS,
        "minibatch_size": 16,
        "num_minibatches_per_task": 25,
        "heartbeat_seconds": 0.2,
        "output": output,
        "job_dir": job_dir,
        "summary": summary,
        **others,
    }
    return [sys.executable, "-m", "elasticdl.cli.main", "train"] + [
        f"--{name}={value}" for name, value in flags.items()
    ]


def processes(job_dir: Path, role: str) -> list[psutil.Process]:
    """Find the living processes of one role of the job, oldest first."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "create_time", "status"]):
        command = process.info["cmdline"] or []
        if (
            f"elasticdl.{role}" in command
            and any(str(job_dir) in word for word in command)
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ):
            found.append(process)
    return sorted(found, key=lambda process: process.info["create_time"])


def kill(process: psutil.Process) -> int:
    """Kill a process; return its pid."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    return process.pid


class Chaos:
    """Watches a job's progress and carries out a plan."""

    def __init__(self, job_dir: Path, faults: list[Fault], rng: random.Random) -> None:
        self._job_dir = job_dir
        self._faults = list(faults)
        self._rng = rng
        self._num_workers = NUM_WORKERS
        self.done: list[tuple[float, str]] = []
        self.ps_kills: list[float] = []  # seconds since 1970

    def follow(self, statuses: Iterator[JobStatus], master: JobClient) -> None:
        """Carry out each fault when its moment has come."""
        for status in statuses:
            share = status.records_done / max(status.records_total, 1)
            while self._faults and share >= self._faults[0].at:
                what = self._carry_out(self._faults.pop(0), master)
                self.done.append((share, what))

    def _carry_out(self, fault: Fault, master: JobClient) -> str:
        if fault.kind == "add":
            self._num_workers += 1
            master.set_num_workers(self._num_workers)
            return f"worker added: {self._num_workers} wanted"
        role = fault.kind.partition("-")[0]
        victims = processes(self._job_dir, role)
        if not victims:
            return f"no {role} alive to kill"
        if fault.kind != "ps-all":
            victims = [self._rng.choice(victims)]
        was = dict(victims[0].info)  # psutil changes it when the process is gone
        if role == "ps":
            self.ps_kills.append(time.time())
        for victim in victims:
            kill(victim)
        text = f"kill -9 {role}, pid {', '.join(str(victim.pid) for victim in victims)}"
        if fault.kind == "ps-again":
            text += f", and its successor, pid {kill(self._successor_of(was))}"
        return text

    def _successor_of(self, was: dict) -> psutil.Process:
        """Wait for the process that is started in place of a ps replica."""
        deadline = time.monotonic() + _SUCCESSOR_SECONDS
        while time.monotonic() < deadline:
            for process in processes(self._job_dir, "ps"):
                found = process.info
                if found["cmdline"] == was["cmdline"] and found["pid"] != was["pid"]:
                    return process
        raise TimeoutError(f"nothing was started in place of pid {was['pid']}")


def connect(job_dir: Path, job: subprocess.Popen[bytes]) -> JobClient | None:
    """Return a client of the job's master once it listens; None if the job ends before."""
    address = job_dir / "master.json"
    while not address.exists():
        try:
            job.wait(timeout=0.02)
        except subprocess.TimeoutExpired:
            continue
        return None
    return JobClient(json.loads(address.read_text())["address"], read_token(job_dir / TOKEN_FILE))


def counts_of(export: Path, num_ids: int = NUM_IDS) -> np.ndarray:
    """Read the trained counts of all ids from an exported counting model."""
    with np.load(export / "model.npz", allow_pickle=False) as arrays:
        counts = np.zeros(num_ids)
        counts[arrays["table/count/keys"]] = arrays["table/count/rows"][:, 0]
        return counts


def run(
    seed: int,
    kinds: list[str],
    directory: Path,
    console: Console,
    mode: str = "async",
    ps_recovery: str = "replay",
) -> Record:
    """Run one job with faults and print what happened."""
    rng = random.Random(seed)
    started = time.time()
    data, job_dir = directory / "data", directory / "job"
    data.mkdir()
    occurrences = make_data(data, seed, mode)
    faults = plan(rng, kinds)
    summary_path = directory / "summary.json"
    flags: dict[str, object] = {**MODES[mode], **rng.choice(CHECKPOINTS)}
    flags["ps_recovery"] = ps_recovery
    if "checkpoint_steps" in flags:
        flags["checkpoint_dir"] = directory / "checkpoints"
    if ps_recovery == "latest":
        flags["num_ps_pods"] = 1  # so that each lost record is four lost updates of rows
    job = subprocess.Popen(
        train_command(data, directory / "export", job_dir, summary_path, **flags),
        stdout=(directory / "train.log").open("w"),
        stderr=subprocess.STDOUT,
    )
    chaos = Chaos(job_dir, faults, rng)
    try:
        master = connect(job_dir, job)
        if master is not None:
            chaos.follow(master.watch(give_up_seconds=30), master)
        code = job.wait()
    finally:
        job.kill()
    for share, what in chaos.done:
        console.print(f"at {share:6.1%} of the records: {what}")
    record = Record(seed, {name: str(value) for name, value in flags.items()}, chaos.done, started)
    if code != 0 or not summary_path.exists():
        console.print((directory / "train.log").read_text(), markup=False)
        console.print(f"[red]the job ended with exit code {code}")
        return record
    summary = json.loads(summary_path.read_text())
    record.recoveries = summary["recoveries"]
    record.training_again_seconds = training_again(job_dir, chaos.ps_kills)
    for recovery in record.recoveries:
        console.print(
            f"ps replica {recovery['replica']}: back {recovery['seconds']:.1f} s after its loss, "
            f"restored version {recovery['version']}, {recovery['tasks']} tasks "
            f"({recovery['records']} records) {'replayed' if recovery['is_replayed'] else 'lost'}"
        )
    for seconds in record.training_again_seconds:
        console.print(f"ps replica killed to training again: {seconds:.1f} s (heartbeats: 0.2 s)")
    record.seconds = time.time() - started
    counts = counts_of(directory / "export", len(occurrences))
    is_exact = judge(summary, occurrences, counts, console)
    is_bounded = within_bound(summary, mode, len(faults), console)
    record.is_exact = is_exact and is_bounded and len(chaos.done) == len(faults)
    return record


def within_bound(summary: dict, mode: str, num_faults: int, console: Console) -> bool:
    """Print the staleness; return whether it is what the mode promises.

    A worker that dies between two replicas leaves an update on one of them that the gate does not
    know (docs/designs/synchrony.md), so each fault may add one.
    """
    staleness = summary["staleness"]
    console.print(
        f"{mode}: staleness {staleness['mean']:.2f} on average, {staleness['p99']} for 99 %, "
        f"{staleness['max']} at most; {summary['recomputed']} minibatches computed again"
    )
    limit = {"async": None, "bounded": MAX_STALENESS + num_faults, "synchronous": 0}[mode]
    return limit is None or staleness["max"] <= limit


def training_again(job_dir: Path, kills: list[float]) -> list[float]:
    """Return, for each kill of a ps replica, after how long a worker had made an update again.

    An update goes to all replicas; so the first one after the last one before the replica was back
    shows that training goes on. As workers said with their heartbeats.
    """
    lines = [
        json.loads(line)
        for path in sorted((job_dir / "events").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    back = sorted(line["time"] for line in lines if line["event"] == "ps recovered")
    progress = sorted(
        (line["time"], line["index"], line["num_minibatches"])
        for line in lines
        if line["event"] == "progress"
    )
    found = []
    for killed in kills:
        since = next((when for when in back if when > killed), None)
        before: dict[int, int] = {}
        for when, worker, minibatches in progress:
            if since is not None and when > since and minibatches > before.get(worker, 0):
                found.append(when - killed)
                break
            before[worker] = minibatches
    return found


def judge(summary: dict, occurrences: np.ndarray, counts: np.ndarray, console: Console) -> bool:
    """Print the ledger and the counts side by side; return whether both are exact."""
    table = Table(title="Ledger and counts")
    for column in ("epoch", "records", "trained once", "repeated", "lost"):
        table.add_column(column, justify="right")
    ledger = summary["ledger"]
    for row in ledger:
        table.add_row(
            *(str(row[k]) for k in ("epoch", "records", "trained_once", "repeated", "lost"))
        )
    console.print(table)
    lost = sum(row["lost"] for row in ledger)
    if summary["recoveries"] and not all(r["is_replayed"] for r in summary["recoveries"]):
        missing = NUM_EPOCHS * int(occurrences.sum()) - int(counts.sum())
        console.print(f"{lost} records lost, and {missing} updates of {IDS_PER_RECORD} a record")
        return missing == lost * IDS_PER_RECORD and all(row["repeated"] == 0 for row in ledger)
    # Beyond a rounding error: Adam's moments are float32.
    wrong = np.flatnonzero(np.abs(counts - NUM_EPOCHS * occurrences) > 1e-3)
    console.print(
        f"{len(counts) - len(wrong)} of {len(counts)} ids have exactly {NUM_EPOCHS} x their "
        f"occurrences; {int(counts.sum())} updates of rows, "
        f"{NUM_EPOCHS * int(occurrences.sum())} expected"
    )
    for key in wrong[:10]:
        console.print(f"[red]id {key}: {counts[key]:.0f}, expected {NUM_EPOCHS * occurrences[key]}")
    exact_ledger = len(ledger) == NUM_EPOCHS and all(
        row["trained_once"] == row["records"] == NUM_RECORDS and row["repeated"] == row["lost"] == 0
        for row in ledger
    )
    return exact_ledger and len(wrong) == 0


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--faults",
        default="worker,worker,ps,master,add",
        help=f"comma list of {', '.join(FAULTS)}; each happens at a random moment",
    )
    parser.add_argument("--mode", choices=MODES, default="async", help="when updates are made")
    parser.add_argument("--ps_recovery", choices=("replay", "latest"), default="replay")
    parser.add_argument("--minutes", type=float, default=0, help="run random jobs for so long")
    parser.add_argument("--record", type=Path, help="with --minutes: what was killed, as JSON")
    parser.add_argument("--dir", type=Path, help="keep the job's files here")
    arguments = parser.parse_args()
    kinds = [kind for kind in arguments.faults.split(",") if kind]
    for kind in kinds:
        if kind not in FAULTS:
            parser.error(f"--faults: expected any of {', '.join(FAULTS)}, found {kind!r}")
    console = Console()
    with tempfile.TemporaryDirectory(prefix="elasticdl-chaos-") as scratch:
        directory = arguments.dir or Path(scratch)
        if arguments.minutes:
            sys.exit(soak(arguments.seed, arguments.minutes, directory, arguments.record, console))
        directory.mkdir(parents=True, exist_ok=True)
        record = run(
            arguments.seed, kinds, directory, console, arguments.mode, arguments.ps_recovery
        )
    console.print("[green]every count is exact" if record.is_exact else "[red]NOT exact")
    sys.exit(0 if record.is_exact else 1)


def soak(seed: int, minutes: float, directory: Path, path: Path | None, console: Console) -> int:
    """Run jobs with random faults for some minutes; return the exit code."""
    rng, records = random.Random(seed), []
    ends = time.monotonic() + 60 * minutes
    while time.monotonic() < ends and all(record.is_exact for record in records):
        round_seed = seed * 1000 + len(records)
        kinds = rng.choices(SOAK_FAULTS, k=rng.randint(2, 6))
        console.rule(f"seed {round_seed}: {', '.join(kinds)}")
        folder = directory / str(round_seed)
        folder.mkdir(parents=True)
        records.append(run(round_seed, kinds, folder, console))
        if records[-1].is_exact:
            shutil.rmtree(folder)
        if path is not None:
            path.write_text(json.dumps([asdict(record) for record in records], indent=1) + "\n")
    kills = sum(what.startswith("kill") for record in records for _, what in record.killed)
    waits = sorted(s for record in records for s in record.training_again_seconds)
    text = f"{len(records)} jobs, {kills} times something was killed"
    if waits:
        text += f"; ps replica killed to training again: median {waits[len(waits) // 2]:.1f} s, "
        text += f"longest {waits[-1]:.1f} s"
    console.print(text)
    is_exact = all(record.is_exact for record in records)
    console.print("[green]every count is exact" if is_exact else "[red]NOT exact")
    return 0 if is_exact else 1


if __name__ == "__main__":
    main()
