"""Chooses the launcher of a job, and finds a job that was submitted before."""

from __future__ import annotations

from elasticdl import registry
from elasticdl.config import JobConfig
from elasticdl.errors import UnknownJobError
from elasticdl.job import Strategy
from elasticdl.launchers.base import SubmittedJob, Submitter
from elasticdl.launchers.parts import LauncherParts
from elasticdl.settings.launcher import PROCESS, LauncherFacts, launchers


def submitter_for(config: JobConfig) -> Submitter:
    """Return the submitter for a job with this configuration."""
    return parts_of(config).submitter()


def parts_of(config: JobConfig) -> LauncherParts:
    """Return the parts of the launcher of a job."""
    return _parts(config.launcher)


def _parts(facts: LauncherFacts) -> LauncherParts:
    parts: LauncherParts = registry.load(facts.parts)
    return parts


def dry_run(config: JobConfig) -> int:
    """Print what would be asked of a cluster for a job; return the exit code.

    Raises:
        ElasticdlError: No launcher can print it for this job.
    """
    can = [facts for facts in launchers().values() if facts.dry_run]
    return _parts(config.launcher if config.launcher in can else can[0]).dry_run(config)


def notes(config: JobConfig) -> list[str]:
    """Return what a user should know about the job before it runs, one sentence each."""
    return [
        *parts_of(config).notes(config),
        *_redo_log(config),
        *_exchange(config),
        *_late_gradients(config),
    ]


def _redo_log(config: JobConfig) -> list[str]:
    """Return a note that ps replicas keep a redo log although no flag has asked for it."""
    lasts = parts_of(config).has_lasting_job_dir(config)
    if config.checkpoint.ps_redo_mb is not None or not config.redo_log_bytes or not lasts:
        return []
    megabytes = config.redo_log_bytes // 1_000_000
    return [
        f"each ps replica keeps a redo log of up to {megabytes} MB in the job's folder, so that a "
        "lost machine costs seconds; --ps_redo_mb=0 turns it off, and updates are up to a tenth "
        "faster"
    ]


def _exchange(config: JobConfig) -> list[str]:
    """Return a note of what `--exchange_minibatches=auto` has chosen."""
    if config.training.exchange_minibatches != "auto":
        return []
    number = config.minibatches_per_exchange
    return [
        f"--exchange_minibatches=auto: {number} with {config.num_ps} ps replicas, so that a worker "
        f"sends each of them two frames for every {number} minibatches"
    ]


def _late_gradients(config: JobConfig) -> list[str]:
    """Return a note about the cost of asynchronous updates, unless a flag limits them."""
    training, workers = config.training, config.cluster.num_workers
    if (
        config.command != "train"
        or training.distribution_strategy is not Strategy.PARAMETER_SERVER
        or config.is_synchronous
        or workers < 2
        or training.max_staleness is not None
        or training.staleness_lr_modulation
    ):
        return []
    return [
        f"{workers} workers train asynchronously: their gradients come about {2 * workers - 1} "
        "updates late, and a model may reach less than with one worker; if it does, give "
        "--staleness_lr_modulation=true or --max_staleness=1 (docs/concepts.md, Staleness)"
    ]


def find(name: str) -> SubmittedJob:
    """Return a job that was submitted before, running or ended.

    Raises:
        UnknownJobError: There is no job of this name; the error says which places were searched.
    """
    known = launchers()
    # This machine takes any folder of a job, so those are asked before that know their own folders.
    first = [facts for facts in known.values() if facts.shares_folder]
    others = [facts for facts in known.values() if facts not in (known[PROCESS], *first)]
    submitters = [_parts(facts).submitter() for facts in (*first, known[PROCESS], *others)]
    for submitter in submitters:
        job = submitter.find(name)
        if job is not None:
            return job
    places = "; ".join(filter(None, (submitter.places_of(name) for submitter in submitters)))
    raise UnknownJobError(f"there is no job {name!r}; looked for {places}")
