"""The settings of a job's data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from elasticdl.locations import Location
from elasticdl.settings import reader_params
from elasticdl.settings.duration import seconds_in
from elasticdl.settings.section import Only, Section

_TRAIN = Only(("train",))
_EVALUATE = Only(("train", "evaluate"))
_PREDICT = Only(("predict",))


class DataSection(Section):
    """Data."""

    training_data: Annotated[
        str, Field(description="Files, folder or glob of training records."), _TRAIN
    ] = ""
    validation_data: Annotated[
        str, Field(description="Files, folder or glob of validation records."), _EVALUATE
    ] = ""
    validation_split: Annotated[
        float,
        Field(
            ge=0.0,
            lt=1.0,
            description="In the place of --validation_data: the part of the training records to "
            "evaluate on, such as 0.1; the others are trained. Which they are is drawn by the "
            "name of the file and the number of the record, the same in each run.",
        ),
        _TRAIN,
    ] = 0.0
    prediction_data: Annotated[
        str, Field(description="Files, folder or glob of records to predict."), _PREDICT
    ] = ""
    data_reader_params: Annotated[
        str,
        Field(
            description='Settings of the data reader: "delimiter=,;skip_header=true". A value may '
            "be env:NAME or file:/PATH, which each process reads itself; passwords, tokens and "
            "keys are never shown."
        ),
    ] = ""

    reader_command: Annotated[
        str,
        Field(
            description="A command, run by bash, that prints the training records; it is in the "
            "place of --training_data. It is run once, and its records are kept until trained."
        ),
        _TRAIN,
    ] = ""
    reader_framing: Annotated[
        Literal["lines", "framed"],
        Field(
            description="How --reader_command prints records: each a line, or each after four "
            "bytes of its length, the lowest first."
        ),
        _TRAIN,
    ] = "lines"
    reader_state: Annotated[
        bool,
        Field(
            description="custom_data_reader of the model file returns a reader of training data "
            "that is read once, in order, and has state() and restore(state)."
        ),
        _TRAIN,
    ] = False

    on_gap: Annotated[
        Literal["fail", "skip"],
        Field(
            description="When a broker has deleted messages before they were read: fail the job, "
            "or go on after them and count them."
        ),
        Only(("train", "evaluate")),
    ] = "fail"
    bad_message_dir: Annotated[
        Location | None,
        Field(
            description="A folder, a path or URL, for messages of a topic that cannot be read; the "
            "job goes on without them and counts them. Else such a message fails its task."
        ),
        Only(("train", "evaluate")),
    ] = None

    metrics_window: Annotated[
        str,
        Field(
            description="Metrics of a topic's messages, each scored before it is trained, are kept "
            "by windows of event time: how long one is, such as 1m or 1h."
        ),
        _TRAIN,
    ] = "1m"
    max_lateness: Annotated[
        str,
        Field(
            description="Messages of a topic that lie further than this behind the watermark, such "
            "as 10m, are late: counted, and dealt with as --on_late says."
        ),
        _TRAIN,
    ] = ""
    on_late: Annotated[
        Literal["train", "drop", "aside"],
        Field(
            description="What becomes of a late message: it is trained, left out, or left out and "
            "written to --bad_message_dir."
        ),
        _TRAIN,
    ] = "train"

    @model_validator(mode="after")
    def _is_read_in_one_way(self) -> DataSection:
        if self.reader_command and self.training_data:
            raise ValueError(
                f"--reader_command prints the training records: expected no --training_data, found "
                f"{self.training_data}"
            )
        if self.reader_command and self.reader_state:
            raise ValueError(
                "--reader_command and --reader_state both say how training data are read: expected "
                "one of them"
            )
        if self.reader_framing != "lines" and not self.reader_command:
            raise ValueError(f"--reader_framing={self.reader_framing} needs --reader_command")
        return self

    @model_validator(mode="after")
    def _has_one_validation(self) -> DataSection:
        if self.validation_split and self.validation_data:
            raise ValueError(
                f"--validation_split={self.validation_split:g} holds training records out to "
                f"evaluate on, and --validation_data={self.validation_data} names others: expected "
                "one of them"
            )
        return self

    @property
    def evaluates(self) -> bool:
        """Return whether there is data to evaluate on."""
        return bool(self.validation_data or self.validation_split)

    @property
    def source(self) -> str:
        """The source of the training records: --training_data, or the command that prints them."""
        return self.reader_command or self.training_data

    @model_validator(mode="after")
    def _times_are_lengths(self) -> DataSection:
        for flag in ("metrics_window", "max_lateness"):
            word = getattr(self, flag)
            if (word or flag == "metrics_window") and not seconds_in(word):
                raise ValueError(f"--{flag}={word}: expected a length of time such as 30s, 5m, 1h")
        return self

    @property
    def window_seconds(self) -> float:
        """The length of a window of event time, in seconds."""
        return seconds_in(self.metrics_window) or 0.0

    @property
    def lateness_seconds(self) -> float | None:
        """How many seconds behind the watermark a message is late; None: no message is late."""
        return seconds_in(self.max_lateness)

    @model_validator(mode="after")
    def _keeps_its_secrets(self) -> DataSection:
        reader_params.secrets_of(self.data_reader_params)  # it can be told what is one
        for flag in ("training_data", "validation_data", "prediction_data"):
            name = getattr(self, flag)
            if reader_params.has_password(name):
                raise ValueError(
                    f"--{flag}={reader_params.without_password(name)}: the name of data is in "
                    "logs and in the job's state: expected no password in it, but "
                    "--data_reader_params=password=env:NAME"
                )
        return self
