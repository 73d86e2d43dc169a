"""Settings of trackers, which draw the curves of a job. None of them changes the training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from elasticdl.errors import ConfigError
from elasticdl.job import Strategy
from elasticdl.settings.reader_params import has_password
from elasticdl.settings.section import Needs, Only, PackageSection

if TYPE_CHECKING:
    from elasticdl.config import JobConfig

_TRAIN = Only(("train",))
_FLAGS = ("mlflow_uri", "wandb_project")


class TrackersSection(PackageSection):
    """Trackers of experiments."""

    changes_nothing: ClassVar[bool] = True
    needs: ClassVar[tuple[Needs, ...]] = (
        Needs("mlflow_uri", "mlflow", ("mlflow",)),
        Needs("wandb_project", "wandb", ("wandb",)),
    )

    mlflow_uri: Annotated[
        str,
        Field(
            description="Write parameters, metrics by update and the trained model to this MLflow "
            "server, as http://HOST:PORT; one run, also over restarts of the master and the job."
        ),
        _TRAIN,
    ] = ""
    mlflow_experiment: Annotated[
        str, Field(description="The experiment of --mlflow_uri."), _TRAIN
    ] = "elasticdl"
    wandb_project: Annotated[
        str,
        Field(
            description="Write parameters, metrics by update and the trained model to this project "
            "of Weights & Biases; one run, also over restarts of the master and the job. The key, "
            "the entity and the mode are read from its own variables, as WANDB_MODE=offline."
        ),
        _TRAIN,
    ] = ""

    def check(self, job: JobConfig) -> None:
        """Refuse trackers of a job without a master, and passwords that its state would have."""
        for flag in _FLAGS:
            if getattr(self, flag) and job.is_local:
                raise ValueError(
                    f"--{flag} is written by the master of a job of processes: expected "
                    f"--distribution_strategy={Strategy.PARAMETER_SERVER}, or another but Local"
                )
        if has_password(self.mlflow_uri):
            raise ValueError(
                "--mlflow_uri is in the job's state: expected no password in it, but the "
                "variables MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )

    def check_machine(self, job: JobConfig) -> None:
        """Refuse a project of Weights & Biases without a key."""
        from elasticdl.packages.trackers.wandb_run import has_key

        # On a cluster the master's machine may have what this one lacks.
        logs_in = bool(self.wandb_project) and not job.is_on_cluster
        if logs_in and not has_key(os.environ, Path.home()):
            raise ConfigError(
                "--wandb_project needs a key: expected WANDB_API_KEY, or a login by `wandb login`, "
                "or WANDB_MODE=offline"
            )
