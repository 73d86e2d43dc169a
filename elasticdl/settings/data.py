"""The settings of a job's data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from elasticdl.locations import Location
from elasticdl.settings import reader_params
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
