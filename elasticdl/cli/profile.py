"""`elasticdl profile`: the stages of some steps of every worker, as a Chrome trace."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from pathlib import Path

import rich_click as click

from elasticdl.errors import ConfigError, UnavailableError
from elasticdl.job import Role

_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 0.2


@click.command()
@click.argument("name", metavar="JOB")
@click.option("--steps", type=click.IntRange(min=1), default=50, show_default=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("trace.json"),
    show_default=True,
    help="File to write.",
)
@click.option(
    "--wait_seconds",
    type=click.FloatRange(min=1.0),
    default=60.0,
    show_default=True,
    help="For workers that have not made so many steps; then those that have are written.",
)
@click.option("--explain", is_flag=True, help="Also say what bounds the job, and what to change.")
def profile(name: str, steps: int, output: Path, wait_seconds: float, explain: bool) -> None:
    """Record the stages of some steps of a running job; Perfetto opens the file.

    JOB is a job's folder on this machine, or its name. Of each worker the trace has its threads,
    and on them feed, ids, pull, compute, push and the waits, with task and minibatch.
    """
    from elasticdl import process
    from elasticdl.launchers import choose
    from elasticdl.observe.chrome_trace import trace

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
    wanted = {
        f"worker-{member.index}"
        for member in members
        if member.role is Role.WORKER and member.state == "alive"
    }
    request = uuid.uuid4().hex[:12]
    folder.mkdir(exist_ok=True)
    words = {"id": request, "steps": steps}
    process.write_whole(folder / process.PROFILE_REQUEST, json.dumps(words))
    deadline = time.monotonic() + wait_seconds
    found: dict[str, Path] = {}
    while wanted - found.keys() and time.monotonic() < deadline:
        has_ended = job.end(_LOOK_SECONDS) is not None
        found = {path.name.split(".")[1]: path for path in folder.glob(f"{request}.*.json")}
        if has_ended:
            break
    (folder / process.PROFILE_REQUEST).unlink(missing_ok=True)
    if not found:
        raise UnavailableError(
            f"no worker of {name} has made {steps} steps within {wait_seconds:.0f} s: give fewer "
            "--steps, or more --wait_seconds"
        )
    output.write_text(json.dumps(trace(json.loads(path.read_text()) for path in found.values())))
    for path in found.values():
        path.unlink()
    missing = ", ".join(sorted(wanted - found.keys()))
    click.echo(f"{output}: {steps} steps of {', '.join(sorted(found))}")
    if missing:
        click.echo(f"not in it, because they made fewer steps: {missing}")
    if explain:
        _explain(job.events(follow=False, with_beats=True))


def _explain(events: object) -> None:
    from elasticdl.observe.history.bound import bound_of
    from elasticdl.observe.history.fold import History

    bound = bound_of(History.of(events))  # type: ignore[arg-type]
    click.echo(f"{bound.text} {bound.advice}" if bound else "The job has not trained for long yet.")
