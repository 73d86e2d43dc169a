"""The settings of a job's data."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

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
