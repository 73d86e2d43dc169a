"""Kills processes of a real job at random moments and proves that every count is exact.

The job trains `model_zoo/counting`: each row ends as the number of times its id was trained. After
the kills the exported rows must equal epochs x occurrences of every id, and the job's own ledger
must say that no record was repeated or lost. Exit code 0 only if both are so.

    python scripts/chaos.py --seed 7                    # all kinds of faults
    python scripts/chaos.py --seed 7 --faults worker    # a worker killed with -9
    python scripts/chaos.py --seed 7 --mode synchronous # gradients of 3 workers are averaged
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
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
FAULTS = ("worker", "master", "add", "ps")
MAX_STALENESS = 3
MODES: dict[str, dict[str, object]] = {
    "async": {},
    "bounded": {"max_staleness": MAX_STALENESS},
    # The average of gradients moves a row by a share of one: ids occur once, and only signs count.
    "synchronous": {"use_async": "false", "optimizer": "sign_optimizer"},
}


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
    data: Path, output: Path, job_dir: Path, summary: Path, mode: str = "async"
) -> list[str]:
    """Return the command line of the job."""
    flags = {
        "model_zoo": ROOT / "model_zoo",
        "model_def": "counting.model.forward",
        "training_data": data,
        "distribution_strategy": "ParameterServerStrategy",
        "num_workers": NUM_WORKERS,
        "num_ps_pods": NUM_PS,
        "num_epochs": NUM_EPOCHS,
        "minibatch_size": 16,
        "num_minibatches_per_task": 25,
        "output": output,
        "job_dir": job_dir,
        "summary": summary,
        **MODES[mode],
    }
    return [sys.executable, "-m", "elasticdl.cli.main", "train"] + [
        f"--{name}={value}" for name, value in flags.items()
    ]


def processes(job_dir: Path, role: str) -> list[psutil.Process]:
    """Find the living processes of one role of the job, oldest first."""
    found = []
    for process in psutil.process_iter(["cmdline", "create_time", "status"]):
        command = process.info["cmdline"] or []
        if (
            f"elasticdl.{role}" in command
            and any(str(job_dir) in word for word in command)
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ):
            found.append(process)
    return sorted(found, key=lambda process: process.info["create_time"])


class Chaos:
    """Watches a job's progress and carries out a plan."""

    def __init__(self, job_dir: Path, faults: list[Fault], rng: random.Random) -> None:
        self._job_dir = job_dir
        self._faults = list(faults)
        self._rng = rng
        self._num_workers = NUM_WORKERS
        self.done: list[tuple[float, str]] = []

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
        victims = processes(self._job_dir, fault.kind)
        if not victims:
            return f"no {fault.kind} alive to kill"
        victim = self._rng.choice(victims)
        os.kill(victim.pid, signal.SIGKILL)
        return f"kill -9 {fault.kind}, pid {victim.pid}"


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


def run(seed: int, kinds: list[str], directory: Path, console: Console, mode: str) -> bool:
    """Run one job with faults; print what happened; return whether every count is exact."""
    rng = random.Random(seed)
    data, job_dir = directory / "data", directory / "job"
    data.mkdir()
    occurrences = make_data(data, seed, mode)
    faults = plan(rng, kinds)
    summary_path = directory / "summary.json"
    job = subprocess.Popen(
        train_command(data, directory / "export", job_dir, summary_path, mode),
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
    if code != 0 or not summary_path.exists():
        console.print((directory / "train.log").read_text(), markup=False)
        console.print(f"[red]the job ended with exit code {code}")
        return False
    summary = json.loads(summary_path.read_text())
    counts = counts_of(directory / "export", len(occurrences))
    exact = judge(summary, occurrences, counts, console)
    return exact and within_bound(summary, mode, console) and len(chaos.done) == len(faults)


def within_bound(summary: dict, mode: str, console: Console) -> bool:
    """Print the staleness; return whether it is what the mode promises."""
    staleness = summary["staleness"]
    console.print(
        f"{mode}: staleness {staleness['mean']:.2f} on average, {staleness['p99']} for 99 %, "
        f"{staleness['max']} at most; {summary['recomputed']} minibatches computed again"
    )
    limit = {"async": None, "bounded": MAX_STALENESS, "synchronous": 0}[mode]
    return limit is None or staleness["max"] <= limit


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
        default="worker,worker,master,add",
        help=f"comma list of {', '.join(FAULTS)}; each happens at a random moment",
    )
    parser.add_argument("--mode", choices=MODES, default="async", help="when updates are made")
    parser.add_argument("--dir", type=Path, help="keep the job's files here")
    arguments = parser.parse_args()
    kinds = [kind for kind in arguments.faults.split(",") if kind]
    for kind in kinds:
        if kind not in FAULTS:
            parser.error(f"--faults: expected any of {', '.join(FAULTS)}, found {kind!r}")
    console = Console()
    with tempfile.TemporaryDirectory(prefix="elasticdl-chaos-") as scratch:
        directory = arguments.dir or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        exact = run(arguments.seed, kinds, directory, console, arguments.mode)
    console.print("[green]every count is exact" if exact else "[red]NOT exact")
    sys.exit(0 if exact else 1)


if __name__ == "__main__":
    main()
