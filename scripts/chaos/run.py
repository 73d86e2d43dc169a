"""Runs one job from its data to a verdict."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from elasticdl.job import Role
from elasticdl.master.phases import Phase
from elasticdl.observe.events import read_events
from model_zoo.counting import model as counting
from model_zoo.counting import visits

from .expected import minibatches
from .faults import Fault, Struck, flags_of, is_due, plan
from .job import (
    HEARTBEAT_SECONDS,
    MODES,
    NUM_EPOCHS,
    NUM_IDS,
    NUM_PS,
    Flags,
    connect,
    make_ids,
    read_model,
    train_command,
    write_data,
)
from .judge import Event, Evidence, judge
from .strike import Striker
from .watch import EventTail, follow

# A lost ps replica starts from a checkpoint: seconds or updates between checkpoints.
_CHECKPOINTS: tuple[Flags, ...] = (
    {"recovery_seconds": 0},
    {"recovery_seconds": 1},
    {"checkpoint_steps": 500},
)

_WITH_REDO_LOG = 0.5  # share of jobs; the other jobs replay lost work from the ledger


@dataclass(slots=True)
class Record:
    """The faults and results of one job. `problems` is empty if the job is correct."""

    seed: int
    mode: str
    flags: dict[str, str]
    struck: list[Struck]
    began: float
    seconds: float = 0.0
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    training_again_seconds: list[float] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def run(
    seed: int,
    kinds: Sequence[str],
    directory: Path,
    console: Console,
    mode: str = "async",
    ps_recovery: str = "replay",
    state: str | None = None,
    tls: str | None = None,
) -> Record:
    """Run one job with faults and print its results; `state` is the job's `--state`."""
    rng = random.Random(seed)
    faults = plan(kinds, rng)
    flags = _flags(faults, directory, mode, ps_recovery, rng)
    if random.Random(f"redo log {seed}").random() < _WITH_REDO_LOG:
        flags["ps_redo_mb"] = 1024
    if state is not None:
        flags["state"] = state
    if tls is not None:
        flags["tls"] = tls
    if tls == "off":
        flags["insecure"] = "true"
    files = make_ids(seed, mode)
    write_data(directory / "data", files)
    words = {name: str(value) for name, value in flags.items()}
    record = Record(seed, mode, words, [], time.time())

    code = _train(directory, faults, flags, rng, record)

    record.seconds = time.time() - record.began
    for struck in record.struck:
        what = struck.text or f"[red]{struck.kind}: {struck.problem}"
        console.print(f"at {struck.share:6.1%} of the records, {struck.phase}: {what}")
    summary_path = directory / "summary.json"
    if code != 0 or not summary_path.exists():
        console.print((directory / "train.log").read_text(), markup=False)
        record.problems.append(f"the job ended with exit code {code}")
        return record
    summary = json.loads(summary_path.read_text())
    events = list(read_events(directory / "job"))
    num_ids = max(NUM_IDS, 1 + max(int(ids.max()) for ids in files))
    evidence = Evidence(
        mode=mode,
        num_ps=int(str(flags.get("num_ps_pods", NUM_PS))),
        num_epochs=NUM_EPOCHS,
        planned=list(kinds),
        struck=record.struck,
        trained=minibatches(files, shuffles_records=mode == "records"),
        occurrences=np.bincount(np.concatenate(files).ravel(), minlength=num_ids),
        model=read_model(directory / "export", num_ids),
        summary=summary,
        events=events,
    )
    model_file = visits if mode == "synchronous" else counting
    record.problems = judge(evidence, model_file.NUM_SIGNATURES)
    record.recoveries = summary["recoveries"]
    record.counters = summary.get("counters", {})
    kills = [v.when for s in record.struck for v in s.victims if v.role == "ps"]
    record.training_again_seconds = training_again(events, kills)
    _print(record, summary, console)
    return record


def _flags(
    faults: Sequence[Fault], directory: Path, mode: str, ps_recovery: str, rng: random.Random
) -> Flags:
    flags: Flags = {**MODES[mode], **rng.choice(_CHECKPOINTS), **flags_of(faults)}
    flags["ps_recovery"] = ps_recovery
    phases = {fault.phase for fault in faults}
    if "checkpoint_steps" in flags or Phase.CHECKPOINTING in phases:
        flags["checkpoint_dir"] = directory / "checkpoints"
    if Phase.EVALUATING in phases:
        flags["validation_data"] = directory / "data"
    if ps_recovery == "latest":
        flags["num_ps_pods"] = 1  # all of a lost minibatch is missing then
    return flags


def _train(
    directory: Path, faults: Sequence[Fault], flags: Flags, rng: random.Random, record: Record
) -> int:
    """Run the job, strike it, and return its exit code."""
    job_dir = directory / "job"
    command = train_command(
        directory / "data", directory / "export", job_dir, directory / "summary.json", **flags
    )
    with (directory / "train.log").open("w") as log:
        job = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        master = connect(job_dir, job)
        if master is not None:
            tail = EventTail(job_dir, Role.MASTER)
            striker = Striker(job_dir, master, tail, rng)
            waiting = list(faults)
            try:
                for _ in range(sum(fault.what == "worker-returns" for fault in faults)):
                    striker.start_by_hand()
                for moment in follow(job, master, tail):
                    while waiting and is_due(waiting[0], moment.share, moment.phase):
                        record.struck.append(striker.strike(waiting.pop(0), moment))
                code = job.wait()
            finally:
                striker.close()
                master.close()
            return code
        return job.wait()
    finally:
        job.kill()
        job.wait()


def training_again(events: Sequence[Event], kills: Sequence[float]) -> list[float]:
    """Return for each kill of a ps replica the seconds until a worker made an update again.

    An update goes to all replicas. So a new update after the return of the replica shows that
    training goes on. The numbers of updates come from the heartbeats of workers.
    """
    back = sorted(event["time"] for event in events if event["event"] == "ps recovered")
    progress = [event for event in events if event["event"] == "progress"]
    found = []
    for killed in kills:
        since = next((when for when in back if when > killed), None)
        before: dict[int, int] = {}
        for event in progress:
            worker, minibatches = event["index"], event["num_minibatches"]
            is_after = since is not None and event["time"] > since
            if is_after and minibatches > before.get(worker, 0):
                found.append(event["time"] - killed)
                break
            before[worker] = minibatches
    return found


def _print(record: Record, summary: dict[str, Any], console: Console) -> None:
    for recovery in record.recoveries:
        console.print(
            f"ps replica {recovery['replica']}: back {recovery['seconds']:.1f} s after its loss, "
            f"restored version {recovery['version']}, {recovery['tasks']} tasks "
            f"({recovery['records']} records) {'replayed' if recovery['is_replayed'] else 'lost'}"
        )
    for seconds in record.training_again_seconds:
        console.print(
            f"ps replica killed to training again: {seconds:.1f} s "
            f"(heartbeats: {HEARTBEAT_SECONDS} s)"
        )
    table = Table(title="Ledger")
    names = ("epoch", "records", "trained_once", "repeated", "lost")
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for line in summary["ledger"]:
        table.add_row(*(str(line[name]) for name in names))
    console.print(table)
    staleness = summary["staleness"]
    console.print(
        f"{record.mode}: staleness {staleness['mean']:.2f} on average, {staleness['p99']} for "
        f"99 %, {staleness['max']} at most; {summary['recomputed']} minibatches computed again"
    )
    if record.counters:
        console.print(", ".join(f"{name} {count}" for name, count in record.counters.items()))
    for problem in record.problems:
        console.print(f"[red]{problem}")
