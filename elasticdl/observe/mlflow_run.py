"""A job as a run of MLflow: parameters, metrics by update, the trained model.

A job has one run, whoever of it dies: it is found again by the identity of the job, which is one of
its tags. What the server has been told already is not told again by the same master; a successor
tells it the present.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.distribution import install
from elasticdl.errors import ConfigError
from elasticdl.job import JobStatus
from elasticdl.observe.curves import curves
from elasticdl.settings.reader_params import without_password

if TYPE_CHECKING:  # it comes with an extra
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

JOB_TAG = "elasticdl.job"

_SECONDS_BETWEEN = 2.0
_AGAIN_SECONDS = 5.0
_MOST_WAITING = 100  # pictures; of a server that does not answer the rest is left out
_CLOSE_SECONDS = 60.0  # for the last ones and the model
_MOST_PARAMETERS = 100  # that the server takes at once
_LONGEST = 500  # letters of a parameter
_SECRET = ("data_reader_params", "state")
_ENDS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}

log = logging.getLogger(__name__)

_Picture = tuple[JobStatus, float | None]


class MlflowRun:
    """Writes pictures of a job to an MLflow server.

    A thread writes: whoever takes pictures never waits for the server. One that is away is asked
    again, and pictures that it has not got by then are left out.
    """

    def __init__(self, config: JobConfig, job: str) -> None:
        """Begin to write.

        Args:
            config: Of the job.
            job: Its identity, for ever.

        Raises:
            ConfigError: mlflow is not installed.
        """
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ConfigError(f"--mlflow_uri needs mlflow: {install('mlflow')}") from error
        self._client: MlflowClient = MlflowClient(tracking_uri=config.seeing.mlflow_uri)
        self._experiment = config.seeing.mlflow_experiment
        self._name, self._job = config.cluster.job_name, job
        self._parameters = parameters_of(config)
        output = config.checkpoint.output
        self._model = output if isinstance(output, Path) else None
        self._told: dict[str, tuple[object, ...]] = {}
        self._run = ""
        self._next = 0.0
        self._is_away = False
        self._pictures: queue.SimpleQueue[_Picture | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="mlflow", daemon=True)
        self._thread.start()

    def take(self, status: JobStatus, learning_rate: float | None, is_last: bool = False) -> None:
        """Have what is new of a picture written; now and then, and the last one."""
        now = time.monotonic()
        if (now < self._next and not is_last) or self._pictures.qsize() > _MOST_WAITING:
            return
        self._next = now + _SECONDS_BETWEEN
        self._pictures.put((status, learning_rate))

    def close(self) -> None:
        """Write the rest; of a server that does not answer it is left."""
        self._pictures.put(None)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            log.warning("--mlflow_uri: the server does not answer; its run lacks what came last")

    def _write(self) -> None:
        while (picture := self._pictures.get()) is not None:
            is_sent = self._try(picture)
            while not is_sent and self._pictures.empty():
                time.sleep(_AGAIN_SECONDS)
                is_sent = self._try(picture)

    def _try(self, picture: _Picture) -> bool:
        """Send a picture; return whether that was possible."""
        try:
            self._send(*picture)
        except Exception as error:  # of any library below
            if not self._is_away:
                log.warning("--mlflow_uri: %s; it is tried again", error)
            self._is_away = True
            return False
        if self._is_away:
            log.info("--mlflow_uri: the server is there again")
        self._is_away = False
        return True

    def _send(self, status: JobStatus, learning_rate: float | None) -> None:
        self._run = self._run or self._begin()
        new: dict[str, tuple[object, ...]] = {}
        metrics: list[Metric] = []
        for name, value, measured in curves(status, learning_rate):
            if self._told.get(name) != measured and math.isfinite(value):
                new[name] = measured
                metrics.append(_metric(name, value, status.model_version))
        if metrics:
            self._client.log_batch(self._run, metrics=metrics)
        self._told |= new
        if (end := _ENDS.get(status.status)) is not None:
            if status.status == "finished" and self._model is not None and self._model.is_dir():
                self._client.log_artifacts(self._run, str(self._model), "model")
            self._client.set_terminated(self._run, end)

    def _begin(self) -> str:
        """Find the run of the job, or make it; return its identity."""
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = (
            self._client.create_experiment(self._experiment)
            if found is None
            else found.experiment_id
        )
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
        """Log all flags; those of a run that has them stay as they are."""
        from mlflow.entities import Param

        known = self._client.get_run(run).data.params
        new = [Param(n, v[:_LONGEST]) for n, v in self._parameters.items() if n not in known]
        for first in range(0, len(new), _MOST_PARAMETERS):
            self._client.log_batch(run, params=new[first : first + _MOST_PARAMETERS])


def parameters_of(config: JobConfig) -> dict[str, str]:
    """Return the flags that were given, but for those that may have secrets."""
    found: dict[str, str] = {}
    for section, values in config.model_dump(mode="json", exclude_defaults=True).items():
        if isinstance(values, Mapping) and section != "seeing":
            given = {n: v for n, v in values.items() if n not in _SECRET and v not in (None, "")}
            found |= {name: without_password(str(value)) for name, value in given.items()}
    return found


def _metric(name: str, value: float, step: int) -> Metric:
    from mlflow.entities import Metric

    return Metric(name, value, int(time.time() * 1000), step)
