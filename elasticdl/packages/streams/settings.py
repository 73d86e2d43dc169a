"""The settings of data that arrives while a job runs, or that is read once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from elasticdl.locations import Location
from elasticdl.settings.duration import seconds_in
from elasticdl.settings.section import Only, PackageSection

if TYPE_CHECKING:
    from elasticdl.config import JobConfig

_TRAIN = Only(("train",))


class StreamsSection(PackageSection):
    """Streams, and data that is read once."""

    may_differ: ClassVar[tuple[str, ...]] = ("on_gap", "bad_message_dir")

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

    @property
    def trains_on(self) -> str:
        """The command that prints the training records; "": they are in --training_data."""
        return self.reader_command

    @property
    def destinations(self) -> Mapping[str, Location | None]:
        """The folder of messages that cannot be read."""
        return {"bad_message_dir": self.bad_message_dir}

    def check(self, job: JobConfig) -> None:
        """Refuse a job whose training records are read in two ways."""
        if self.reader_command and job.data.training_data:
            raise ValueError(
                f"--reader_command prints the training records: expected no --training_data, found "
                f"{job.data.training_data}"
            )
        if self.reader_command and self.reader_state:
            raise ValueError(
                "--reader_command and --reader_state both say how training data are read: expected "
                "one of them"
            )
        if self.reader_framing != "lines" and not self.reader_command:
            raise ValueError(f"--reader_framing={self.reader_framing} needs --reader_command")

    def check_machine(self, job: JobConfig) -> None:
        """Refuse a folder for messages that cannot be written to, or has other files."""
        from elasticdl.cli.job_folder import holds_job
        from elasticdl.cli.preflight import check_new_folder

        # The folder of a job that goes on may have files of the job.
        if self.bad_message_dir is not None and not holds_job(job):
            check_new_folder("bad_message_dir", self.bad_message_dir)

    @model_validator(mode="after")
    def _times_are_lengths(self) -> StreamsSection:
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
