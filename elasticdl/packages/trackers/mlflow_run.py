"""A job as a run of MLflow: parameters, metrics by update, the trained model.

A job has one run, even if its processes die. The run is found again by the job's identity, which is
one of its tags. A master does not send a number twice; a successor sends the present numbers.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.distribution import install, is_missing
from elasticdl.errors import ConfigError
from elasticdl.job.status import JobStatus
from elasticdl.packages.trackers.outbox import Outbox, Picture, Untold, parameters_of
from elasticdl.packages.trackers.settings import TrackersSection

if TYPE_CHECKING:  # it comes with an extra
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

JOB_TAG = "elasticdl.job"

_SECONDS_BETWEEN = 2.0
_MOST_PARAMETERS = 100  # that the server takes at once
_LONGEST = 500  # letters of a parameter
_REFUSED = re.compile(r"[^\w./: -]")  # letters of the name of a metric
_ENDS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}


class MlflowRun:
    """Writes pictures of a job to an MLflow server.

    A thread writes, so the caller never waits for the server. If the server is away, it is asked
    again, and the pictures that come meanwhile are left out.
    """

    flag = "--mlflow_uri"

    def __init__(self, config: JobConfig, job: str) -> None:
        """Begin to write.

        Args:
            config: The settings of the job.
            job: The job's identity, which never changes.

        Raises:
            ConfigError: mlflow is not installed.
        """
        if is_missing("mlflow"):
            raise ConfigError(f"--mlflow_uri needs mlflow: {install('mlflow')}")
        settings = config.of(TrackersSection)
        self._uri = settings.mlflow_uri
        self._client: MlflowClient
        self._experiment = settings.mlflow_experiment
        self._name, self._job = config.cluster.job_name, job
        self._parameters = parameters_of(config)
        output = config.checkpoint.output
        self._model = output if isinstance(output, Path) else None
        self._untold = Untold()
        self._run = ""
        self._outbox: Outbox[Picture] = Outbox(
            self.flag, self._send, seconds_between=_SECONDS_BETWEEN, is_sent_again=True
        )

    def take(self, status: JobStatus, learning_rate: float | None, is_last: bool = False) -> None:
        """Write the news of a picture; now and then, and always the last one."""
        self._outbox.put((status, learning_rate), may_be_left_out=not is_last)

    def close(self, seconds: float) -> None:
        """Write the rest; if the server does not answer, the rest is dropped."""
        self._outbox.close(seconds)

    def _send(self, picture: Picture) -> None:
        self._run = self._run or self._begin()
        status, _ = picture
        new = self._untold.of(picture)
        if new:
            metrics = [_metric(name, value, status.model_version) for name, value in new.items()]
            self._client.log_batch(self._run, metrics=metrics)
        self._untold.told(picture)
        if (end := _ENDS.get(status.status)) is not None:
            if status.status == "finished" and self._model is not None and self._model.is_dir():
                self._client.log_artifacts(self._run, str(self._model), "model")
            self._client.set_terminated(self._run, end)

    def _begin(self) -> str:
        """Find or make the run of the job; return its identity."""
        from mlflow.tracking import MlflowClient  # by this thread, for it takes seconds

        self._client = MlflowClient(tracking_uri=self._uri)
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = (
            self._client.create_experiment(self._experiment)
            if found is None
            else found.experiment_id
        )
        # A master before this one may have made the run.
        runs = self._client.search_runs([experiment], f"tags.`{JOB_TAG}` = '{self._job}'")
        if runs:
            run = str(runs[0].info.run_id)
            self._client.update_run(run, status="RUNNING")
        else:
            tags = {JOB_TAG: self._job, "mlflow.source.name": "elasticdl"}
            made = self._client.create_run(experiment, run_name=self._name, tags=tags)
            run = str(made.info.run_id)
        self._log_parameters(run)
        return run

    def _log_parameters(self, run: str) -> None:
        """Log all flags; a parameter that the run has already stays the same."""
        from mlflow.entities import Param

        # MLflow refuses to change a parameter of a run.
        known = self._client.get_run(run).data.params
        new = [Param(n, v[:_LONGEST]) for n, v in self._parameters.items() if n not in known]
        for first in range(0, len(new), _MOST_PARAMETERS):
            self._client.log_batch(run, params=new[first : first + _MOST_PARAMETERS])


def _metric(name: str, value: float, step: int) -> Metric:
    from mlflow.entities import Metric

    return Metric(_taken(name), value, int(time.time() * 1000), step)


def _taken(name: str) -> str:
    """Return a name that the server takes; it refuses all metrics if it refuses one name."""
    parts = _REFUSED.sub("_", name).split("/")
    return "/".join(part for part in parts if part not in ("", ".", ".."))
