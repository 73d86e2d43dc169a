"""Defines `train(...)` and the job that it returns."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.cli import preflight
from elasticdl.cli.display import Display
from elasticdl.cli.flags import build_config, check_given, flags, unknown_flag
from elasticdl.cli.jobs import ANSWER_SECONDS, ask, picture_now
from elasticdl.cli.run import submit
from elasticdl.cli.view import LeftError, view
from elasticdl.config import Command, JobConfig
from elasticdl.errors import ConfigError, JobFailedError, UnavailableError
from elasticdl.job import Strategy
from elasticdl.job.status import EpochScores, JobStatus, no_status
from elasticdl.launchers.base import SubmittedJob
from elasticdl.locations import Location, is_remote
from elasticdl.packages.notebooks import inputs, models, notebook, tables
from elasticdl.packages.notebooks.models import Model, ModelPlace

if TYPE_CHECKING:
    from elasticdl.packages.notebooks.predictor import LoadedModel

Predictions = NDArray[Any] | dict[str, NDArray[Any]]

_FOREVER_SECONDS = 1e9
_NAMED_OTHERWISE = {
    "model_zoo": "model",
    "model_def": "model",
    "training_data": "data",
    "num_workers": "workers",
    "num_ps_pods": "ps",
}
_OF_PREDICTION = (
    *("feed", "custom_data_reader", "model_params", "negative_sampling_rate", "statistics"),
    *("minibatch_size", "data_reader_params"),
)


def train(
    model: Model,
    data: object,
    *,
    validation_data: object = None,
    workers: int = 1,
    ps: int = 1,
    job_dir: str | Path | None = None,
    **settings: object,
) -> Job:
    """Start a job in processes of its own, and return it. The job outlives this program.

    Args:
        model: A model file (`"model.py"`), `package.module.function` below `model_zoo/`, a module,
            or functions by their names in a model file: `{"forward": forward, "feed": feed}`. The
            job gets a copy of the functions and of the values that they use.
        data: The training data: a path, a URL, or a table of pandas, polars or Arrow. A table is
            written into the job's folder.
        validation_data: The data to evaluate on, in the same form; None: the job does not evaluate.
        workers: The number of worker processes.
        ps: The number of ps replicas, for strategies with ps replicas.
        job_dir: The job's folder; None: a new folder below `jobs/`. The same call with the same
            folder resumes a job that was paused (`elasticdl stop --pause JOB`).
        settings: Other flags of `elasticdl train`, by their names: `num_epochs=3`. If the model is
            functions, flags that name functions are allowed too: `loss="mse"`.

    Raises:
        ConfigError: A setting is unknown or does not fit.
        ModelError: The model is not found, or a function uses a value that cannot be copied.
        DataError: Data cannot be read.
    """
    for name in settings:
        if name in _NAMED_OTHERWISE:
            raise ConfigError(f"{name}: expected the argument {_NAMED_OTHERWISE[name]}")
    model, settings = models.with_settings(model, settings)
    folder = Path(job_dir) if job_dir is not None else _new_folder()
    with inputs.replaced(folder) as given:
        place = models.place_of(model, given)
        words = {
            **_words("train", settings),
            **_words_of_model(place),
            "training_data": tables.place_of(data, given, "training_data"),
            "num_workers": str(workers),
            "job_dir": str(folder),
        }
        words.setdefault("distribution_strategy", Strategy.PARAMETER_SERVER)
        words.setdefault("output", str(folder / "model"))
        _refuse_local(words["distribution_strategy"])
        if words["distribution_strategy"] in (Strategy.PARAMETER_SERVER, Strategy.HYBRID):
            words["num_ps_pods"] = str(ps)
        if validation_data is not None:
            words["validation_data"] = tables.place_of(validation_data, given, "validation_data")
        config = build_config("train", words)
        check_given(config, words)
        return Job(config, words, submit(config))


class Job:
    """A job that this program started. The job does not end with the program; `stop` ends it."""

    def __init__(
        self, config: JobConfig, words: Mapping[str, str], submitted: SubmittedJob
    ) -> None:
        """Keep the configuration and the handle of a started job."""
        assert config.checkpoint.output is not None, "train sets one"
        self._config = config
        # The program may change its working directory while the job trains.
        here = Path.cwd()
        output = config.checkpoint.output
        self._output = output if is_remote(output) else here / output
        self._model_zoo = here / config.model.model_zoo
        self._words = {
            name: str(here / word) if name == "statistics" else word for name, word in words.items()
        }
        self._job = submitted
        self._began = time.time()
        self._model: LoadedModel | None = None

    @property
    def name(self) -> str:
        """The job's name, for commands such as `elasticdl attach NAME`."""
        return self._job.name

    @property
    def output(self) -> Location:
        """The folder or URL of the trained model, once the job has finished."""
        return self._output

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the newest evaluation; empty before the first evaluation."""
        return dict(self.status().metrics)

    @property
    def history(self) -> dict[str, list[float]]:
        """The same as `History.history` of Keras: for each name, one value for each complete epoch.

        `loss` is the mean over the records while they were trained. A name with `val_` is a metric
        of the evaluation after the epoch, and other names are metrics of training. An unknown value
        is NaN.
        """
        return history_of(self.status().history)

    def status(self) -> JobStatus:
        """Return the newest status of the job, or its last status if it has ended."""
        try:
            return picture_now(self._job, self.name)[0]
        except UnavailableError:
            silent = no_status(self.name, 0)
            return dataclasses.replace(
                silent, status="pending", message="its master does not answer"
            )

    def wait(self, show: bool = True) -> JobStatus:
        """Wait for the end of the job, and return its last status.

        Ctrl-C ends only the waiting: the job goes on.

        Args:
            show: Show the progress: below the cell of a notebook, or as `elasticdl train` does.

        Raises:
            JobFailedError: The job has failed, or was stopped; the error says why.
        """
        if show and notebook.is_there():
            notebook.follow(self.status, lambda: self._job.end(0.0) is not None)
        elif show and threading.current_thread() is threading.main_thread():
            self._show()
        status = self._job.end(_FOREVER_SECONDS)
        assert status is not None
        if status.status != "finished":
            raise JobFailedError(
                f"the job {self.name} has {status.status}: {status.message}; elasticdl logs "
                f"{self.name} prints what its processes said"
            )
        return status

    def scale(self, workers: int | None = None, ps: int | None = None) -> None:
        """Set the number of workers, or move the model to another number of ps replicas.

        Raises:
            ElasticdlError: The job has ended, or its model cannot move; the error says why.
        """
        if workers is not None:
            ask(self._job, lambda client: client.set_num_workers(workers, ANSWER_SECONDS))
        if ps is not None:
            ask(self._job, lambda client: client.set_num_ps(ps, ANSWER_SECONDS))

    def stop(self, drain: bool = False) -> None:
        """Cancel the job for good; with `drain`, train what has come of the stream, then finish.

        Raises:
            UnavailableError: The job has ended.
        """
        if drain:
            ask(self._job, lambda client: client.drain(ANSWER_SECONDS))
        else:
            ask(self._job, lambda client: client.stop("by Job.stop", ANSWER_SECONDS))
            self._job.end(_FOREVER_SECONDS)

    def predict(self, data: object, data_reader_params: str | None = None) -> Predictions:
        """Return the predictions of the trained model for records, in the order of the records.

        The first call loads the model into this program, and later calls use it again.

        Args:
            data: A path, or a table, as in `train`.
            data_reader_params: The settings for reading files, as in `train`; None: the settings of
                the training data. A table needs none.

        Returns:
            An array whose first dimension is the records; several outputs are arrays by name.

        Raises:
            JobFailedError: The job has not finished, or the predictions have failed.
            ConfigError: The trained model is at a URL.
        """
        output = self.output
        if is_remote(output):
            raise ConfigError(
                f"predict: expected a trained model in a folder, found it at {output}: fetch it, "
                "and use elasticdl predict --saved_model=FOLDER"
            )
        if self.status().status != "finished":
            raise JobFailedError(f"the job {self.name} is {self.status().status}: wait for its end")
        with tempfile.TemporaryDirectory(prefix="elasticdl-") as scratch:
            folder = Path(scratch)
            words = {
                **settings_of_prediction(self._words, data, data_reader_params),
                **_words_of_model(ModelPlace(self._model_zoo, self._model_def)),
                "prediction_data": tables.place_of(data, folder, "prediction_data"),
                "saved_model": str(output),
                "distribution_strategy": Strategy.PARAMETER_SERVER,
                "output": str(folder / "predictions"),
                "job_dir": str(folder / "job"),
            }
            config = build_config("predict", words)
            model = self._loaded(output)
            if model is not None:
                model.predict(config, folder / "predictions")
            else:
                _predict_by_job(config)
            return _read_predictions(folder / "predictions")

    def _loaded(self, output: Path) -> LoadedModel | None:
        """Return the trained model in this program, if it can be loaded here."""
        from elasticdl.packages.notebooks import predictor  # and with it the whole worker

        if self._model is None and predictor.may_load(output):
            self._model = predictor.LoadedModel()
        return self._model

    def _repr_html_(self) -> str:
        return notebook.picture(self.status())

    def __repr__(self) -> str:
        return f"<job {self.name}: {self.status().status}>"

    @property
    def _model_def(self) -> str:
        return str(self._config.model.model_def)

    def _show(self) -> None:
        display = Display(loading=preflight.framework(self._config))
        try:
            with display:
                status = view(self._job, display, self._began)
        except LeftError as left:
            raise KeyboardInterrupt(f"the job {self.name} goes on") from left
        display.finish(status, self._job.places)


def _predict_by_job(config: JobConfig) -> None:
    """Predict in separate processes."""
    status = submit(config).end(_FOREVER_SECONDS)
    if status is None or status.status != "finished":
        raise JobFailedError(f"the predictions have failed: {status and status.message}")


def _refuse_local(strategy: str) -> None:
    if strategy == Strategy.LOCAL:
        raise ConfigError(
            "distribution_strategy=Local is one process, which trains while it is waited for: "
            f"expected {Strategy.PARAMETER_SERVER}, or elasticdl train in a shell"
        )


def _words(command: Command, settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as the words of a command line."""
    known = {flag.name for flag in flags(command)}
    for name in settings:
        if name not in known:
            raise ConfigError(unknown_flag(command, name))
    given = {name: value for name, value in settings.items() if value is not None}
    return {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in given.items()}


def history_of(epochs: Sequence[EpochScores]) -> dict[str, list[float]]:
    """Return the values of epochs by their names."""
    rows = [
        {
            **({} if epoch.loss is None else {"loss": epoch.loss}),
            **epoch.metrics,
            **{f"val_{name}": value for name, value in epoch.validation.items()},
        }
        for epoch in epochs
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, math.nan) for row in rows] for name in names}


def settings_of_prediction(
    words: Mapping[str, str], data: object, data_reader_params: str | None
) -> dict[str, str]:
    """Return those settings of a job that its predictions use too."""
    kept = {name: words[name] for name in _OF_PREDICTION if name in words}
    if data_reader_params is not None:
        kept["data_reader_params"] = data_reader_params
    elif not isinstance(data, str | Path):  # what is said of a file of lines is not of a table
        kept.pop("data_reader_params", None)
    return kept


def _words_of_model(place: ModelPlace) -> dict[str, str]:
    zoo = {} if place.model_zoo is None else {"model_zoo": str(place.model_zoo)}
    return {**zoo, "model_def": place.model_def}


def _new_folder() -> Path:
    when = time.strftime("%Y%m%d-%H%M%S")
    return Path("jobs") / f"python-{when}-{os.getpid()}-{uuid.uuid4().hex[:4]}"


def _read_predictions(folder: Path) -> Predictions:
    paths = sorted(folder.glob("predictions-*.npz"))
    if not paths:
        raise JobFailedError(
            "predict: expected predictions, found none: the data have no records, or the model "
            "file has a PredictionOutputsProcessor, which has taken the predictions"
        )
    found: dict[str, list[NDArray[Any]]] = {}
    for path in paths:
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                if name not in ("source", "record"):
                    found.setdefault(name, []).append(arrays[name])
    outputs = {name: np.concatenate(parts) for name, parts in found.items()}
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs
