"""Settings of different sections that do not go together: a table, and the checks beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.job import Strategy
from elasticdl.locations import Location, is_remote
from elasticdl.settings.best import Best

if TYPE_CHECKING:
    from elasticdl.config import JobConfig

Given = Callable[["JobConfig"], object]

WRITTEN_WHOLE = ("output", "export_tables")


def check_destinations(places: Mapping[str, Location | None]) -> None:
    """Refuse a destination inside the folder of another that is written as a whole.

    Such a folder appears by a rename, when it is complete. Files that are in it by then would
    prevent the rename, or be lost.

    Args:
        places: The destination of each flag.

    Raises:
        ValueError: Two destinations overlap; names both flags.
    """
    given = {flag: _parts(place) for flag, place in places.items() if place is not None}
    for whole in WRITTEN_WHOLE:
        outer = given.get(whole)
        for flag, inner in given.items():
            if outer is None or flag == whole or inner[: len(outer)] != outer:
                continue
            raise ValueError(
                f"--{flag}={places[flag]} is in the folder of --{whole}={places[whole]}, which is "
                "written as a whole when training has ended: expected folders that are apart"
            )


def _parts(place: Location) -> tuple[str, ...]:
    if isinstance(place, Path):
        # Two spellings of one folder, such as a/../b and b, must compare as equal.
        return Path(os.path.abspath(place)).parts
    return tuple(str(place).rstrip("/").split("/"))


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that do not go together.

    when: Whether a job has them.
    words: The message; `{name}` is the value of a setting or of a property of the job, and `{flag}`
        the first flag that is given.
    flags: Flags of which one must be given too, each with whether it is; empty: none needs to be.
    """

    when: Given
    words: str
    flags: Mapping[str, Given] = field(default_factory=dict)

    def check(self, job: JobConfig) -> None:
        """Refuse a job that has them.

        Raises:
            ValueError: It has; says what was expected.
        """
        if not self.when(job):
            return
        given = [flag for flag, is_given in self.flags.items() if is_given(job)]
        if given or not self.flags:
            raise ValueError(self.words.format_map(_Values(job, given)))


class _Values(dict[str, Any]):
    """Finds what a message names: in a job itself, or in its sections."""

    def __init__(self, job: JobConfig, given: list[str]) -> None:
        super().__init__({"flag": given[0]} if given else {})
        self._job = job

    def __missing__(self, name: str) -> Any:
        owners = [self._job, *vars(self._job).values()]
        # A property of the job comes before a setting: `launcher` is the name of both.
        if not isinstance(getattr(type(self._job), name, None), property):
            owners = [each for each in owners if name in getattr(type(each), "model_fields", ())]
        value = getattr(owners[0], name)
        return "none" if value is None else value


def check_conflicts(job: JobConfig) -> None:
    """Refuse settings that do not go together.

    Raises:
        ValueError: They do not; says what was expected.
    """
    for conflict in CONFLICTS:
        conflict.check(job)


def _has(strategy: Strategy) -> Given:
    return lambda job: job.training.distribution_strategy is strategy


def _has_not(*strategies: Strategy) -> Given:
    return lambda job: job.training.distribution_strategy not in strategies


def _is_given(name: str) -> Given:
    return lambda job: name in job.checkpoint.given()


def _is_url(place: Location | None) -> bool:
    return place is not None and is_remote(place)


def _is_shared_folder(place: Location | None) -> bool:
    return place is not None and not is_remote(place)


def _exchanges_several(job: JobConfig) -> bool:
    return job.training.exchange_minibatches != 1


_PS, _HYBRID = Strategy.PARAMETER_SERVER, Strategy.HYBRID
_OF_PS: Mapping[str, Given] = {
    "--use_async=false": lambda job: not job.training.use_async,
    "--get_model_steps": lambda job: job.training.get_model_steps > 1,
    "--staleness_lr_modulation": lambda job: job.training.staleness_lr_modulation,
}
"""Flags of which workers that reduce gradients among themselves have no use."""

CONFLICTS = (
    # Synchrony.
    Conflict(
        lambda job: (
            job.training.use_async
            and (job.training.grads_to_wait or job.training.sync_version_tolerance)
        ),
        "--grads_to_wait and --sync_version_tolerance are of synchronous training: give "
        "--use_async=false too",
    ),
    Conflict(
        lambda job: not job.training.use_async and job.training.max_staleness is not None,
        "--max_staleness bounds asynchronous training; with --use_async=false it is "
        "--sync_version_tolerance",
    ),
    Conflict(
        lambda job: job.training.finish_rate < 1.0 and _has_not(_PS)(job),
        "--finish_rate={finish_rate:g} leaves out what the slowest workers hold: "
        f"expected --distribution_strategy={_PS}, whose replicas know what they have of it, found "
        "{distribution_strategy}",
    ),
    Conflict(
        lambda job: (
            job.training.get_model_steps > 1
            and (not job.training.use_async or job.training.max_staleness is not None)
        ),
        "--get_model_steps={get_model_steps} computes on older dense parameters: expected neither "
        "--use_async=false nor --max_staleness, which promise newer ones",
    ),
    Conflict(
        lambda job: job.training.push_steps > 1 and _has_not(_PS)(job),
        "--push_steps={push_steps} saves pushes to ps replicas of gradients that need not wait for "
        f"each other: expected --distribution_strategy={_PS}, found {{distribution_strategy}}",
    ),
    Conflict(
        lambda job: job.training.push_steps > 1 and not job.training.use_async,
        "--push_steps={push_steps} does not go with --use_async=false, whose rounds average one "
        "minibatch of each worker: expected a larger --minibatch_size, or not this flag",
    ),
    Conflict(
        lambda job: job.training.push_steps > 1 and job.training.max_staleness is not None,
        "--push_steps={push_steps} does not go with --max_staleness={max_staleness}: a gradient "
        "that waits in the worker is late by the updates that others make meanwhile; expected one "
        "of them",
    ),
    Conflict(
        lambda job: _exchanges_several(job) and (_has_not(_PS)(job) or job.command != "train"),
        "--exchange_minibatches={exchange_minibatches} saves frames to ps replicas: expected "
        f"--distribution_strategy={_PS}, found {{distribution_strategy}}",
    ),
    Conflict(
        lambda job: _exchanges_several(job) and not job.training.use_async,
        "--exchange_minibatches={exchange_minibatches} does not go with --use_async=false, whose "
        "rounds have one minibatch of each worker: expected a larger --minibatch_size, or not this "
        "flag",
    ),
    Conflict(
        lambda job: _exchanges_several(job) and job.training.max_staleness is not None,
        "--exchange_minibatches={exchange_minibatches} does not go with "
        "--max_staleness={max_staleness}: a gradient is late by the updates of the minibatches "
        "that were pulled with it; expected one of them",
    ),
    Conflict(
        lambda job: _exchanges_several(job) and job.training.push_steps > 1,
        "--exchange_minibatches={exchange_minibatches} pushes each gradient as an update of its "
        "own, and --push_steps={push_steps} pushes their sum: expected one of them",
    ),
    # The number of ps replicas.
    Conflict(
        lambda job: 0 < job.cluster.ps_autoscale <= job.cluster.num_ps_pods,
        "--ps_autoscale={ps_autoscale} is the most ps replicas that the job may come to have: "
        "expected more than --num_ps_pods={num_ps_pods}",
    ),
    Conflict(
        lambda job: job.cluster.ps_autoscale and job.why_ps_stay,
        "--ps_autoscale={ps_autoscale} cannot have the model move: {why_ps_stay}",
    ),
    # Gradients that workers reduce among themselves.
    Conflict(
        lambda job: (job.training.global_batch_size or 0) % job.training.minibatch_size,
        "--global_batch_size={global_batch_size}: expected a multiple of "
        "--minibatch_size={minibatch_size}, of which updates are made",
    ),
    Conflict(
        lambda job: (
            job.training.global_batch_size is not None and _has_not(Strategy.ALLREDUCE)(job)
        ),
        "--global_batch_size is of synchronous training without ps replicas: expected "
        f"--distribution_strategy={Strategy.ALLREDUCE}",
    ),
    Conflict(
        _has(Strategy.ALLREDUCE),
        f"{{flag}} is about ps replicas, of which --distribution_strategy={Strategy.ALLREDUCE} has "
        f"none: expected --distribution_strategy={_PS}, or not this flag",
        {
            **_OF_PS,
            "--max_staleness": lambda job: job.training.max_staleness is not None,
            "--ps_disk": lambda job: job.cluster.ps_disk is not None,
            "--ps_memory_limit": lambda job: job.cluster.ps_memory_limit is not None,
            "--pretrained_rows": lambda job: job.checkpoint.pretrained_rows,
        },
    ),
    Conflict(
        lambda job: job.training.deterministic and _has_not(Strategy.ALLREDUCE)(job),
        "--deterministic is of training in which all workers make the same updates: expected "
        f"--distribution_strategy={Strategy.ALLREDUCE}, found {{distribution_strategy}}",
    ),
    Conflict(
        lambda job: job.training.deterministic and job.training.global_batch_size is None,
        "--deterministic needs --global_batch_size: without it an update has a minibatch of each "
        "worker, so that it depends on how many there are",
    ),
    Conflict(
        lambda job: (
            job.training.deterministic
            and (job.training.global_batch_size or 0) % job.records_per_task
        ),
        "--deterministic makes each update of whole tasks: expected --global_batch_size as a "
        "multiple of {records_per_task} (--minibatch_size={minibatch_size} times "
        "--num_minibatches_per_task={num_minibatches_per_task}), found {global_batch_size}; a task "
        "is what one worker computes of an update, so there had better be one for each worker",
    ),
    Conflict(
        _has(_HYBRID),
        f"{{flag}} does not go with --distribution_strategy={_HYBRID} so far: expected "
        f"--distribution_strategy={_PS}, or not this flag",
        {**_OF_PS, "--ps_recovery=latest": lambda job: job.checkpoint.ps_recovery == "latest"},
    ),
    # What is written for people to see.
    Conflict(
        lambda job: (
            job.seeing.tensorboard_histograms
            and (
                job.seeing.tensorboard_log_dir is None
                or not _is_shared_folder(job.checkpoint.checkpoint_dir)
            )
        ),
        "--tensorboard_histograms are of checkpoints: expected --tensorboard_log_dir, and "
        "--checkpoint_dir, a folder",
    ),
    # One process.
    Conflict(
        lambda job: job.model.run_eagerly and not job.is_local,
        "--run_eagerly is for looking into a model in one process: expected "
        "--distribution_strategy=Local, found {distribution_strategy}",
    ),
    Conflict(
        lambda job: job.model.run_eagerly and job.model.torch_compile,
        "--run_eagerly runs the model as plain Python, --torch_compile compiles it: give one of "
        "them",
    ),
    Conflict(
        lambda job: job.cluster.state and job.is_local,
        "--state is what a job of several processes goes on from; with "
        "--distribution_strategy=Local use --checkpoint_dir",
    ),
    Conflict(
        lambda job: (
            job.model.model_changes
            and (job.is_local or not job.launcher.sees_files or job.cluster.job_dir is None)
        ),
        "--model_changes=true goes on with a job that was begun with another model file: expected "
        f"--job_dir, its folder on this machine, and not --distribution_strategy={Strategy.LOCAL}, "
        "which has no journal to go on from",
    ),
    # The order of records.
    Conflict(
        lambda job: job.training.shuffle == "records" and not job.training.shuffle_tasks,
        "--shuffle=records draws the order of all records: leave out --shuffle_tasks=false",
    ),
    Conflict(
        lambda job: (
            job.training.shuffle_block_records is not None and job.training.shuffle != "records"
        ),
        "--shuffle_block_records goes only with --shuffle=records",
    ),
    # Data, and what is evaluated.
    Conflict(
        lambda job: job.command == "train" and not job.trains_on,
        "elasticdl train needs --training_data",
    ),
    Conflict(
        lambda job: job.command == "evaluate" and not job.data.validation_data,
        "elasticdl evaluate needs --validation_data",
    ),
    Conflict(
        lambda job: job.command == "predict" and not job.data.prediction_data,
        "elasticdl predict needs --prediction_data",
    ),
    Conflict(
        lambda job: not job.data.evaluates,
        "{flag} needs --validation_data or --validation_split, what to evaluate on",
        {
            "--keep_best": lambda job: Best.of(job.checkpoint.keep_best) is not None,
            "--evaluation_steps": lambda job: job.evaluation.evaluation_steps,
        },
    ),
    # Where the model is written.
    Conflict(
        lambda job: job.command == "predict" and _is_url(job.checkpoint.output),
        "--output={output}: predictions are written to a folder of a file system; expected a path",
    ),
    Conflict(
        lambda job: (
            job.checkpoint.output_tables == "parquet"
            and not _is_shared_folder(job.checkpoint.output)
        ),
        "--output_tables=parquet: each ps replica writes its rows to a folder that the processes "
        "share; expected a path as --output, found {output}",
    ),
    Conflict(
        lambda job: job.has_worlds and not job.num_ps,
        "{flag} is for tables on ps replicas; {distribution_strategy} has none",
        {
            "--output_tables=parquet": lambda job: job.checkpoint.output_tables == "parquet",
            "--export_tables": lambda job: job.checkpoint.export_tables is not None,
        },
    ),
    Conflict(
        lambda job: job.checkpoint.checkpoint_dir is None,
        "{flag} needs --checkpoint_dir, where to write them",
        {
            f"--{name}": _is_given(name)
            for name in ("checkpoint_event_time", "checkpoint_steps", "checkpoint_full_every")
        },
    ),
    Conflict(
        lambda job: job.checkpoint.keep_best and job.checkpoint.checkpoint_dir is None,
        "--keep_best needs --checkpoint_dir, where to keep it",
    ),
    Conflict(
        lambda job: (
            job.checkpoint.export_tables is None
            and (job.checkpoint.export_threshold, job.checkpoint.export_since_version)
            != (None, None)
        ),
        "--export_threshold and --export_since_version need --export_tables, where to write the "
        "tables",
    ),
    # The model to begin with.
    Conflict(
        lambda job: job.checkpoint.pretrained_rows and job.checkpoint.checkpoint_dir_for_init,
        "--pretrained_rows is for new tables, and a checkpoint (--checkpoint_dir_for_init) has all "
        "rows of its tables: give one of them",
    ),
    Conflict(
        lambda job: (
            job.command != "train"
            and (job.checkpoint.checkpoint_dir_for_init is None)
            == (job.checkpoint.saved_model is None)
        ),
        "elasticdl {command} needs a trained model: give exactly one of --checkpoint_dir_for_init "
        "and --saved_model",
    ),
)
