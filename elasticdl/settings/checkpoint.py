"""Settings of a job's beginning and of its results."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from elasticdl.locations import Location
from elasticdl.settings.duration import seconds_in
from elasticdl.settings.section import Only, Section

_TRAIN = Only(("train",))
_USE = Only(("evaluate", "predict"))

REDO_MB_ON_CLUSTERS = 512
"""Of `--ps_redo_mb` where it is not given: a machine is lost there as easily as a process."""


class CheckpointSection(Section):
    """Checkpoints and output."""

    checkpoint_dir: Annotated[
        Location | None,
        Field(
            description="Where checkpoints are written, a path or a URL such as "
            "s3://BUCKET/FOLDER; none without it."
        ),
        _TRAIN,
    ] = None
    checkpoint_steps: Annotated[
        NonNegativeInt,
        Field(description="Updates between two checkpoints; 0: write one at the end only."),
        _TRAIN,
    ] = 0
    checkpoint_event_time: Annotated[
        str,
        Field(
            description="Write a checkpoint whenever the watermark of a topic passes a multiple of "
            "this length of event time, such as 1h."
        ),
        _TRAIN,
    ] = ""
    checkpoint_full_every: Annotated[
        PositiveInt,
        Field(
            description="One checkpoint in this number has all embedding rows; the others have "
            "those that have changed since."
        ),
        _TRAIN,
    ] = 1
    keep_checkpoint_max: Annotated[
        NonNegativeInt,
        Field(description="How many checkpoints are kept, the newest ones; 0 keeps all."),
        _TRAIN,
    ] = 3
    keep_best: Annotated[
        str,
        Field(
            description="Keep the checkpoint of the best evaluation too, by this metric: auc, or "
            "loss:min."
        ),
        _TRAIN,
    ] = ""
    checkpoint_dir_for_init: Annotated[
        Location | None,
        Field(
            description="Start from this checkpoint (a version folder or its parent), a path or "
            "URL."
        ),
    ] = None
    pretrained_rows: Annotated[
        str,
        Field(
            description='Rows that embedding tables begin with: "TABLE=PATH;TABLE=PATH", each PATH '
            "or URL a .npz, .safetensors or .parquet file, a folder of them, or a checkpoint that "
            "has the table."
        ),
        _TRAIN,
    ] = ""
    saved_model: Annotated[
        Path | None, Field(description="Evaluate or predict with this exported model."), _USE
    ] = None
    output: Annotated[
        Location | None,
        Field(
            description="Where the trained model, or predictions, are written; for a model, a path "
            "or URL."
        ),
        Only(("train", "predict")),
    ] = None
    output_tables: Annotated[
        Literal["inside", "parquet"],
        Field(
            description="Where the rows of the trained model are: inside of it, which one worker "
            "writes; or as Parquet beside a small model, written by each ps replica on its own."
        ),
        _TRAIN,
    ] = "inside"
    recovery_seconds: Annotated[
        float,
        Field(
            ge=0,
            description="Seconds between two checkpoints in the job's own folder, from which a ps "
            "replica that died is restored; 0: none, only --checkpoint_dir has some.",
        ),
        _TRAIN,
    ] = 60.0
    ps_redo_mb: Annotated[
        NonNegativeInt | None,
        Field(
            description="Megabytes of a redo log of each ps replica in the job's own folder: one "
            "that was killed is restored up to its last update; 0: none, only up to a checkpoint. "
            f"Default: {REDO_MB_ON_CLUSTERS} on a cluster, 0 for processes of one machine."
        ),
        _TRAIN,
    ] = None
    ps_recovery: Annotated[
        Literal["replay", "latest"],
        Field(
            description="A ps replica that died is restored from the job's last checkpoint: then "
            "replay what it lacks on it alone, or go on (latest) and report what it lost."
        ),
        _TRAIN,
    ] = "replay"
    export_tables: Annotated[
        Path | None,
        Field(description="Write the tables as Parquet into this folder at the end."),
        _TRAIN,
    ] = None
    export_threshold: Annotated[
        float | None,
        Field(
            ge=0,
            description="Leave out rows of which no weight is larger than this; 0: rows of zeros.",
        ),
        _TRAIN,
    ] = None
    export_since_version: Annotated[
        NonNegativeInt | None,
        Field(description="Leave out rows that were not updated after this model version."),
        _TRAIN,
    ] = None
    summary: Annotated[
        Path | None, Field(description="Write the job's result to this file as JSON.")
    ] = None

    @property
    def predictions(self) -> Path | None:
        """The folder of predictions, which must not be a URL."""
        return self.output if isinstance(self.output, Path) else None

    @field_validator("checkpoint_event_time")
    @classmethod
    def _is_a_length_of_time(cls, text: str) -> str:
        if text and not seconds_in(text):
            raise ValueError(f"expected a length of time such as 30m or 1h, found {text!r}")
        return text

    @property
    def event_seconds(self) -> float:
        """The event time between two checkpoints, in seconds; 0: event time is not used."""
        return seconds_in(self.checkpoint_event_time) or 0.0
