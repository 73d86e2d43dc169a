"""A job as a run of Weights & Biases: flags as configuration, metrics by update, the trained model.

A job has one run, even if its processes die. The identity of the run is that of the job, so a
successor resumes it. The library starts a service, a process of its own. It ends with this process,
even if this process is killed. Entity, key, server and mode are read from the library's own
variables, such as WANDB_MODE.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.distribution import install, is_missing
from elasticdl.errors import ConfigError
from elasticdl.job.status import JobStatus
from elasticdl.packages.trackers.outbox import Outbox, Picture, Untold, parameters_of
from elasticdl.packages.trackers.settings import TrackersSection

if TYPE_CHECKING:  # it comes with an extra
    from wandb.sdk.wandb_run import Run

_SECONDS_BETWEEN = 2.0
_FLUSH_SECONDS = 2.0  # so many are lost of a master that is killed
_ENDED = ("finished", "failed", "stopped")


def has_key(environment: Mapping[str, str], home: Path) -> bool:
    """Return whether the library finds its credentials, or needs none.

    Args:
        environment: The variables of a process that would log in.
        home: The user's home folder, where the library and `netrc` have files.
    """
    # The offline modes write files and need no account.
    if environment.get("WANDB_MODE", "online") != "online":
        return True
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = Path(environment.get("WANDB_CONFIG_DIR") or home / ".config" / "wandb") / "settings"
    netrc = Path(environment.get("NETRC") or home / ".netrc")
    of_folder = Path("wandb", "settings")  # where it is started; `wandb offline` writes it
    return any(path.is_file() for path in (netrc, home / "_netrc", settings, of_folder))


class WandbRun:
    """Writes pictures of a job to Weights & Biases, or to files in the job's folder.

    A thread writes, so the caller never waits for the server, nor for the library, which takes
    seconds to load.
    """

    flag = "--wandb_project"

    def __init__(self, config: JobConfig, job: str, folder: Path) -> None:
        """Begin to write.

        Args:
            config: The settings of the job.
            job: The job's identity, which never changes.
            folder: Gets the library's files, unless WANDB_DIR is set.

        Raises:
            ConfigError: wandb is not installed.
        """
        if is_missing("wandb"):
            raise ConfigError(f"--wandb_project needs wandb: {install('wandb')}")
        self._project, self._job = config.of(TrackersSection).wandb_project, job
        self._name = config.cluster.job_name
        self._folder = None if os.environ.get("WANDB_DIR") else folder
        self._parameters = parameters_of(config)
        output = config.checkpoint.output
        self._model = output if isinstance(output, Path) else None
        self._untold = Untold()
        self._run: Run | None = None
        self._status = ""
        self._outbox: Outbox[Picture] = Outbox(
            self.flag,
            self._send,
            end=self._finish,
            seconds_between=_SECONDS_BETWEEN,
            is_sent_again=True,
        )

    def take(self, status: JobStatus, learning_rate: float | None, is_last: bool = False) -> None:
        """Write the news of a picture; now and then, and always the last one."""
        self._outbox.put((status, learning_rate), may_be_left_out=not is_last)

    def close(self, seconds: float) -> None:
        """Write the rest; if the server does not answer, the rest stays in the job's folder."""
        self._outbox.close(seconds)

    def _send(self, picture: Picture) -> None:
        if self._run is None:
            self._run = self._begin()
        status, _ = picture
        self._status = status.status
        if new := self._untold.of(picture):
            # Steps of a run can only grow. A job that continues from a checkpoint is behind for a
            # while.
            least = max(self._run.step, self._run.starting_step)
            self._run.log(new, step=max(status.model_version, least))
        self._untold.told(picture)

    def _begin(self) -> Run:
        """Make the run of the job, or resume it.

        Raises:
            ConfigError: The library lacks what it would ask a person for, as a key.
        """
        import wandb

        # These would record how this process was started and what else runs here, so they are off.
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            silent=True,
            x_disable_machine_info=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
            x_transaction_log_flush_interval=_FLUSH_SECONDS,
            x_file_stream_transmit_interval=_FLUSH_SECONDS,
        )
        try:
            return wandb.init(
                project=self._project,
                id=self._job,
                name=os.environ.get("WANDB_NAME") or self._name,
                resume="allow",
                config=dict(self._parameters),
                dir=self._folder,
                settings=settings,
            )
        except wandb.errors.UsageError as error:  # asking again does not help
            raise ConfigError(str(error)) from error

    def _finish(self) -> None:
        """End the run with the job's result, or as preempted if another master goes on."""
        if self._run is None:
            return
        try:
            if self._status not in _ENDED:
                self._run.mark_preempting()
            elif self._status == "finished" and self._model is not None and self._model.is_dir():
                self._log_model(self._run, self._model)
        finally:
            self._run.finish(exit_code=0 if self._status == "finished" else 1)

    def _log_model(self, run: Run, model: Path) -> None:
        from wandb import Artifact

        artifact = Artifact(f"{self._job}-model", type="model")
        artifact.add_dir(str(model), policy="immutable", skip_cache=True)
        run.log_artifact(artifact, aliases=["latest"])
