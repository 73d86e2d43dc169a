"""Changes a job's settings into those of its pods: paths are paths in a pod."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.locations import is_remote
from elasticdl.packages.kubernetes import names
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.packages.kubernetes.words import from_secret
from elasticdl.runtime.credentials.job import mode_of
from elasticdl.settings import reader_params

_FILE = "sqlite://"


def settle(config: JobConfig) -> JobConfig:
    """Return the settings with which the pods of a job run.

    Secrets in the settings of the data reader and of the model are in files of a Secret. The values
    of `--envs` are in a Secret too.

    Without a volume, each pod has its own job folder. Then a ps replica leaves no recovery
    checkpoints, because its successor could not find them.

    Raises:
        ConfigError: A result would be written where the pods cannot write or nobody reads it, or
            the traffic of the pods would cross the network in clear text.
    """
    _check_destinations(config)
    _check_state(config)
    _check_queue(config)
    cluster = config.cluster.model_copy(
        update={
            "launcher": "kubernetes",
            "job_dir": config.cluster.job_dir or Path(names.JOB_DIR),
            "master_port": config.cluster.master_port or names.MASTER_PORT,
            "tls": mode_of(config.cluster, is_exposed=True),
        }
    )
    model, kubernetes = config.model, config.of(KubernetesSection)
    if kubernetes.sends_model_zoo:
        zoo, statistics = model.model_zoo.absolute(), model.statistics
        if statistics is not None and statistics.absolute().is_relative_to(zoo):
            # It travels in the model folder; elsewhere its path is one of the pods' already.
            statistics = Path(names.MODEL_DIR, statistics.absolute().relative_to(zoo))
        sent: dict[str, Path | None] = {
            "model_zoo": Path(names.MODEL_DIR),
            "statistics": statistics,
        }
        if model.script is not None:
            sent["script"] = Path(names.MODEL_DIR, model.script.name)
        model = model.model_copy(update=sent)
    if kubernetes.cluster_spec is not None:
        path = Path(names.SETTINGS_DIR, names.CLUSTER_SPEC_KEY)
        kubernetes = kubernetes.model_copy(update={"cluster_spec": path})
    envs = from_secret(kubernetes.envs, names.env_secret_of(config.cluster.job_name))
    kubernetes = kubernetes.model_copy(update={"envs": envs})
    folder = Path(names.DATA_SECRET_DIR)
    params = reader_params.with_files(config.data.data_reader_params, folder)
    data = config.data.model_copy(update={"data_reader_params": params})
    params = reader_params.with_files(model.model_params, folder, names.MODEL_PARAMS_PREFIX)
    model = model.model_copy(update={"model_params": params})
    checkpoint = config.checkpoint
    if not has_lasting_job_dir(config):
        _check_no_recovery_is_asked_for(config)
        checkpoint = checkpoint.model_copy(update={"recovery_seconds": 0.0})
    return config.model_copy(
        update={
            "cluster": cluster,
            "model": model,
            "data": data,
            "packages": config.packages.model_copy(update={"kubernetes": kubernetes}),
            "checkpoint": checkpoint,
        }
    )


def secrets_of(config: JobConfig) -> dict[str, str]:
    """Return what the Secret of `--data_reader_params` and `--model_params` has, by its files."""
    of_model = reader_params.secrets_of(config.model.model_params)
    return {
        **reader_params.secrets_of(config.data.data_reader_params),
        **{f"{names.MODEL_PARAMS_PREFIX}{name}": value for name, value in of_model.items()},
    }


def has_secret(config: JobConfig) -> bool:
    """Whether the pods of a settled job have that Secret."""
    flags = config.data.data_reader_params, config.model.model_params
    return any(reader_params.has_files(text, Path(names.DATA_SECRET_DIR)) for text in flags)


def has_lasting_state(config: JobConfig) -> bool:
    """Return whether another master can resume the job."""
    state = config.cluster.state
    if state is None:
        return has_lasting_job_dir(config)
    return not state.startswith(_FILE) or is_on_volume(config, state.removeprefix(_FILE))


def has_lasting_job_dir(config: JobConfig) -> bool:
    """Return whether the job's folder is on a volume, where it outlives the pods and all see it."""
    job_dir = config.cluster.job_dir
    return job_dir is not None and is_on_volume(config, str(job_dir))


def is_on_volume(config: JobConfig, path: str) -> bool:
    """Return whether the pods see a path on one of the volumes."""
    return any(
        PurePosixPath(path).is_relative_to(volume.mount_path)
        for volume in config.of(KubernetesSection).volumes()
    )


def notes(config: JobConfig) -> Iterator[str]:
    """Yield what a user should know about the job before it runs."""
    if not has_lasting_state(config):
        yield (
            "the job's state is in the pod of its master, and a master that is lost ends the job: "
            "--job_dir below a mount_path of --volume, or --state=etcd://..., makes it survive"
        )
    if not has_lasting_job_dir(config):
        yield (
            "the job's folder is not on a volume, and a ps replica that is lost begins again from "
            "--checkpoint_dir, or from nothing: --job_dir below a mount_path of --volume mends that"
        )


def _check_no_recovery_is_asked_for(config: JobConfig) -> None:
    seconds = config.checkpoint.recovery_seconds
    if seconds and "recovery_seconds" in config.checkpoint.model_fields_set:
        raise ConfigError(
            f"--recovery_seconds={seconds:g}: a ps replica's checkpoints would go with its pod: "
            "expected --job_dir below a mount_path of --volume beside it"
        )


def _check_state(config: JobConfig) -> None:
    """Refuse a state that was asked for, but would be lost with the master's pod."""
    state = config.cluster.state
    if state is not None and not has_lasting_state(config):
        raise ConfigError(
            f"--state={state}: the file would be in the pod of the master, and go with it: "
            "expected sqlite:// and a path below a mount_path of --volume, or etcd://..., or no "
            "--state for a job that ends with its master"
        )


def _check_queue(config: JobConfig) -> None:
    """Refuse a job that would begin anew whenever the queue resumes it."""
    queue = config.of(KubernetesSection).queue_name
    if queue and not (has_lasting_state(config) and has_lasting_job_dir(config)):
        raise ConfigError(
            f"--queue_name={queue}: a queue takes processors back and gives them again, and the "
            "job's state would go with its pods: expected --job_dir below a mount_path of --volume"
        )


def _check_destinations(config: JobConfig) -> None:
    checkpoint = config.checkpoint
    places = {
        "job_dir": config.cluster.job_dir,
        "checkpoint_dir": checkpoint.checkpoint_dir,
        "output": checkpoint.output,
        "export_tables": checkpoint.export_tables,
        "tensorboard_log_dir": config.seeing.tensorboard_log_dir,
        **{k: v for each in config.package_sections() for k, v in each.destinations.items()},
    }
    for flag, path in places.items():
        if path is None or is_remote(path) or is_on_volume(config, str(path)):
            continue
        found = ", ".join(volume.mount_path for volume in config.of(KubernetesSection).volumes())
        raise ConfigError(
            f"--{flag}={path}: the pods cannot write there, and what they write would go with "
            "them: expected a path below a mount_path of --volume, found "
            f"{found if found else 'no volume'}"
        )
