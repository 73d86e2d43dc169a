"""Implements `elasticdl profile`: a trace with the stages of some steps of each worker."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import rich_click as click

from elasticdl.checkpoints.in_use import NO_LOCKS
from elasticdl.cli.terminal import LocalPath, echo
from elasticdl.errors import ConfigError, UnavailableError
from elasticdl.job import Role
from elasticdl.packages.page.report_command import writing

_JOINED = {
    "Pull": "pull",
    "Push": "push",
    "Stage": "push",
    "PushPull": "push",
}
"""The stage of a worker by the request that it sends to a ps replica."""


def trace(profiles: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one trace of the recorded spans of processes; its times begin with the first span.

    Workers come first, ps replicas below them. An arrow joins the work of a replica for a minibatch
    with the stage of the worker that asked for it. Replicas record for longer, so only their spans
    within the time of the workers are included.

    Args:
        profiles: The name and the spans of each process, as `worker_profile` and `ps_profile`
            write them.
    """
    profiles = sorted(profiles, key=lambda one: (_is_replica(one), str(one["process"])))
    of_workers = [span for p in profiles if not _is_replica(p) for span in p["spans"]]
    first = min((span["began"] for span in of_workers), default=0.0)
    last = max((span["ended"] for span in of_workers), default=0.0)
    events: list[dict[str, Any]] = []
    asked: dict[tuple[str, int, int], dict[str, Any]] = {}
    for number, profile in enumerate(profiles, 1):
        spans = [s for s in profile["spans"] if s["began"] >= first and s["ended"] <= last]
        events.append(_name("process_name", number, 0, str(profile["process"])))
        order = {"sort_index": number}
        events.append(
            {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": order}
        )
        threads = {span["thread"]: str(span["thread_name"]) for span in spans}
        events += [_name("thread_name", number, ident, name) for ident, name in threads.items()]
        for span in spans:
            event = _event(span, number, first)
            events.append(event)
            place = (span["task"], span["minibatch"])
            if not _is_replica(profile):
                asked[(span["stage"], *place)] = event
            elif (stage := asked.get((_JOINED.get(span["stage"], ""), *place))) is not None:
                events += _arrow(stage, event, len(events))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _is_replica(profile: Mapping[str, Any]) -> bool:
    return str(profile["process"]).startswith(f"{Role.PS}-")


def _event(span: Mapping[str, Any], pid: int, first: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span["stage"],
        "cat": "stage",
        "pid": pid,
        "tid": span["thread"],
        "ts": round((span["began"] - first) * 1e6, 3),
        "dur": round((span["ended"] - span["began"]) * 1e6, 3),
        "args": {name: span[name] for name in ("task", "minibatch") if span[name] >= 0},
    }


def _arrow(
    begin: Mapping[str, Any], end: Mapping[str, Any], ident: int
) -> Iterator[dict[str, Any]]:
    """Yield the two ends of an arrow between two spans."""
    for phase, at in (("s", begin), ("f", end)):
        arrow = {"ph": phase, "name": "asks", "cat": "step", "id": ident}
        place = {name: at[name] for name in ("pid", "tid", "ts")}
        yield {**arrow, **place, **({"bp": "e"} if phase == "f" else {})}


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 0.2
_REPLICA_SECONDS = 15.0  # a few heartbeats, also of a large job


@click.command()
@click.argument("name", metavar="JOB")
@click.option("--steps", type=click.IntRange(min=1), default=50, show_default=True)
@click.option(
    "--output",
    type=LocalPath(path_type=Path, dir_okay=False),
    default=Path("trace.json"),
    show_default=True,
    help="File to write.",
)
@click.option(
    "--wait_seconds",
    type=click.FloatRange(min=1.0),
    default=60.0,
    show_default=True,
    help="How long to wait for these steps; then only the workers that made them are written.",
)
@click.option(
    "--framework",
    is_flag=True,
    help="Also run the profiler of TensorFlow or PyTorch in each worker; its files are in a folder "
    "beside the trace.",
)
@click.option("--explain", is_flag=True, help="Also say what bounds the job, and what to change.")
@click.pass_context
def profile(
    context: click.Context,
    name: str,
    steps: int,
    output: Path,
    wait_seconds: float,
    framework: bool,
    explain: bool,
) -> None:
    """Record the next steps of a running job as a timeline, which Perfetto opens.

    JOB is the folder or name of a job on this machine. The timeline shows the stages of each
    worker's threads (feed, ids, pull, compute, push, waits), and the work of the ps replicas for
    each request. An arrow joins a request with its pull or push.
    """
    from elasticdl.launchers import choose
    from elasticdl.runtime import process

    # The recording takes a minute or more, and would be lost.
    if not output.parent.is_dir():
        raise ConfigError(f"--output={output}: expected a folder {output.parent}, found none")
    job = choose.find(name)
    places = job.places
    if "job_dir" not in places:
        raise ConfigError(
            f"elasticdl profile {name}: expected a job whose folder is on this machine: it asks "
            "the workers by a file there"
        )
    folder = Path(places["job_dir"]) / process.PROFILE_FOLDER
    try:
        with contextlib.closing(job.connect(_ANSWER_SECONDS)) as client:
            members = client.status(_ANSWER_SECONDS, with_members=True).members
    except UnavailableError as error:
        raise UnavailableError(f"only a running job can be profiled: {error}") from error
    alive = [member for member in members if member.state == "alive"]
    wanted, replicas = (
        {process.process_name(role, member.index) for member in alive if member.role is role}
        for role in (Role.WORKER, Role.PS)
    )
    request = uuid.uuid4().hex[:12]
    folder.mkdir(exist_ok=True)
    context.with_resource(_alone(folder, name))
    # An interrupted command has left files here, or a process that answered too late.
    for path in folder.glob("*.*.*"):
        if not path.name.startswith(request):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def ask(steps: int) -> None:
        words = {"id": request, "steps": steps, "framework": framework}
        # A process may look for the file at any moment, so it must appear whole.
        process.write_whole(folder / process.PROFILE_REQUEST, json.dumps(words))

    def answers(names: set[str], seconds: float, ending: str = "json") -> dict[str, Path]:
        """Wait some seconds for the files of processes; return the files that have arrived."""
        deadline = time.monotonic() + seconds
        while True:
            has_ended = job.end(_LOOK_SECONDS) is not None
            found = {path.name.split(".")[1]: path for path in folder.glob(f"{request}.*.{ending}")}
            if has_ended or not names - found.keys() or time.monotonic() >= deadline:
                return found

    try:
        # The replicas record first, so that no request of a recorded worker is missed.
        ask(steps=0)
        answers(replicas, _REPLICA_SECONDS, process.PROFILE_RECORDING)
        ask(steps)
        found = answers(wanted, wait_seconds)
    finally:
        (folder / process.PROFILE_REQUEST).unlink(missing_ok=True)
        for path in folder.glob(f"{request}.*.{process.PROFILE_RECORDING}"):
            path.unlink()
    # Ps replicas answer once the file of the request is removed.
    found = answers({*found, *replicas}, _REPLICA_SECONDS)
    try:
        if not found.keys() - replicas:
            raise UnavailableError(
                f"no worker of {name} has made {steps} steps within {wait_seconds:.0f} s: give "
                "fewer --steps, or more --wait_seconds"
            )
        profiles = [json.loads(path.read_text()) for path in found.values()]
        with writing(output):
            output.write_text(json.dumps(trace(profiles)))
    finally:
        for path in found.values():
            path.unlink()
    echo(f"{output}: {steps} steps of {', '.join(sorted(found))}")
    if missing := ", ".join(sorted((wanted | replicas) - found.keys())):
        echo(f"not in it, because they made fewer steps or have not answered: {missing}")
    if framework:
        _take_own(folder, request, output)
    if explain:
        _explain(job.events(follow=False, with_beats=True))


@contextlib.contextmanager
def _alone(folder: Path, name: str) -> Iterator[None]:
    """Let no other command profile the job within the block, since there is one request for all.

    Raises:
        UnavailableError: Another command does.
    """
    with contextlib.ExitStack() as ends:
        held = os.open(folder, os.O_RDONLY)
        ends.callback(os.close, held)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnavailableError(
                f"elasticdl profile {name}: another command profiles this job: wait for its end"
            ) from None
        except OSError as error:
            if error.errno not in (*NO_LOCKS, errno.EBADF):  # NFS locks no folder
                raise
        yield


def _take_own(folder: Path, request: str, output: Path) -> None:
    """Move the frameworks' own profiles into the folder of the trace."""
    own = sorted(folder.glob(f"{request}.*.framework"))
    if not own:
        echo("the workers' framework has no profiler of its own")
    place = output.with_suffix("" if output.suffix else ".framework")
    for path in own:
        target = place / path.name.split(".")[1]
        with writing(target):
            place.mkdir(exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            shutil.move(path, target)
        echo(f"{target}: by the framework's own profiler")


def _explain(events: object) -> None:
    from elasticdl.packages.page.history.bound import bound_of
    from elasticdl.packages.page.history.fold import History

    bound = bound_of(History.of(events))  # type: ignore[arg-type]
    echo(f"{bound.text} {bound.advice}" if bound else "The job has not trained for long yet.")
