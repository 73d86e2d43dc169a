"""The job under test: its data, its command line, its processes, and its results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from elasticdl._core import RecordWriter
from elasticdl.config import JobConfig
from elasticdl.rpc.client import JobClient
from elasticdl.runtime.credentials import job as credentials
from elasticdl.runtime.process import CONFIG_FILE, TOKEN_FILE, read_token

ROOT = Path(__file__).resolve().parents[2]
NUM_WORKERS, NUM_PS, NUM_EPOCHS = 3, 2, 3
NUM_RECORDS, IDS_PER_RECORD, NUM_IDS = 48_000, 4, 5_000
NUM_FILES = 11  # 4,363 or 4,364 records each: the last minibatch of a file is a small one
MINIBATCH_SIZE, MINIBATCHES_PER_TASK = 16, 25
JOB_SEED = 0
MAX_STALENESS = 3
PUSH_STEPS = 4
EXCHANGE_MINIBATCHES = 4
SHUFFLE_BLOCK = 10
HEARTBEAT_SECONDS = 0.2

Ids = NDArray[np.int64]
Flags = dict[str, object]

MODES: dict[str, Flags] = {
    "async": {},
    "bounded": {"max_staleness": MAX_STALENESS},
    "summed": {"push_steps": PUSH_STEPS},
    "exchanged": {"exchange_minibatches": EXCHANGE_MINIBATCHES},
    "records": {"shuffle": "records", "shuffle_block_records": SHUFFLE_BLOCK},
    # Each id occurs once: its row tells with which weight, and in which round, it was averaged.
    "synchronous": {"use_async": "false", "model_def": "counting.visits.forward"},
}
"""When updates are made, or of which records, and the flags for it."""


@dataclass(frozen=True, slots=True)
class Model:
    """The export of a job, for either model of `model_zoo/counting`.

    rows: A row for each id; zeros for an id without a row.
    dense, state: Name -> values.
    """

    rows: NDArray[np.float32]
    dense: dict[str, NDArray[np.float32]]
    state: dict[str, NDArray[np.float32]]


def make_ids(seed: int, mode: str = "async") -> list[Ids]:
    """Draw the ids of each file's records."""
    rng = np.random.default_rng(seed)
    if mode == "synchronous":
        ids = rng.permutation(NUM_RECORDS * IDS_PER_RECORD).reshape(NUM_RECORDS, IDS_PER_RECORD)
    else:  # skewed: some ids occur in almost every minibatch
        ids = (NUM_IDS * rng.random((NUM_RECORDS, IDS_PER_RECORD)) ** 3).astype(np.int64)
    return np.array_split(ids, NUM_FILES)


def write_data(directory: Path, files: Sequence[Ids]) -> None:
    """Write each file's records as lines of ids."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, ids in enumerate(files):
        with RecordWriter(str(directory / f"part-{number:02}.recordio")) as writer:
            writer.write_many(" ".join(map(str, record)).encode() for record in ids.tolist())


def train_command(
    data: Path | str, output: Path, job_dir: Path, summary: Path, **others: object
) -> list[str]:
    """Return the command line of the job."""
    flags: Flags = {
        "model_zoo": ROOT / "model_zoo",
        "model_def": "counting.model.forward",
        "training_data": data,
        "distribution_strategy": "ParameterServerStrategy",
        "num_workers": NUM_WORKERS,
        "num_ps_pods": NUM_PS,
        "num_epochs": NUM_EPOCHS,
        "minibatch_size": MINIBATCH_SIZE,
        "num_minibatches_per_task": MINIBATCHES_PER_TASK,
        "seed": JOB_SEED,
        "heartbeat_seconds": HEARTBEAT_SECONDS,
        "output": output,
        "job_dir": job_dir,
        "summary": summary,
        **others,
    }
    return [sys.executable, "-m", "elasticdl.cli.main", "train"] + [
        f"--{name}={value}" for name, value in flags.items()
    ]


def connect(job_dir: Path, job: subprocess.Popen[bytes]) -> JobClient | None:
    """Return a client of the job's master once it listens; None if the job ends before."""
    address = job_dir / "master.json"
    while not address.exists():
        try:
            job.wait(timeout=0.02)
        except subprocess.TimeoutExpired:
            continue
        return None
    cluster = JobConfig.read(job_dir / CONFIG_FILE).cluster
    tls = credentials.for_user(cluster, credentials.folder_of(cluster, job_dir))
    return JobClient(
        json.loads(address.read_text())["address"], read_token(job_dir / TOKEN_FILE), tls=tls
    )


def processes(job_dir: Path, role: str) -> list[psutil.Process]:
    """Find the living processes of one role of the job, oldest first.

    Workers start several at a time and in any order, so they are sorted by their numbers. New
    workers have larger numbers. A child that a process of the job has forked, such as a process of
    a data loader, has the same command line. It is left out.
    """
    found = {}
    for process in psutil.process_iter(["pid", "ppid", "cmdline", "create_time", "status"]):
        command = process.info["cmdline"] or []
        if (
            f"elasticdl.{role}" in command
            and any(str(job_dir) in word for word in command)
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ):
            found[process.pid] = process
    own = [process for process in found.values() if process.info["ppid"] not in found]
    return sorted(own, key=_number if role == "worker" else _age)


def _number(process: psutil.Process) -> float:
    words = process.info["cmdline"]
    return int(words[words.index("--index") + 1])


def _age(process: psutil.Process) -> float:
    return float(process.info["create_time"])


def read_model(export: Path, num_ids: int = NUM_IDS) -> Model:
    """Read an exported model of one table."""
    with np.load(export / "model.npz", allow_pickle=False) as arrays:
        named = dict(arrays)
    (keys_name,) = (name for name in named if name.endswith("/keys"))
    trained = named[keys_name.removesuffix("keys") + "rows"]
    rows = np.zeros((num_ids, trained.shape[1]), np.float32)
    rows[named[keys_name]] = trained
    return Model(rows, _under("dense/", named), _under("state/", named))


def counts_of(export: Path, num_ids: int = NUM_IDS) -> NDArray[np.float32]:
    """Return from an exported counting model how often each id was trained."""
    return read_model(export, num_ids).rows[:, 0]


def _under(prefix: str, arrays: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    return {
        name.removeprefix(prefix): values
        for name, values in arrays.items()
        if name.startswith(prefix)
    }
