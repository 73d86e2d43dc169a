"""The settings of an export that goes on while a job trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, NonNegativeInt, PositiveInt

from elasticdl.job import Strategy
from elasticdl.locations import Location
from elasticdl.packages.serving.export_every import Every
from elasticdl.settings.section import Only, PackageSection

if TYPE_CHECKING:
    from elasticdl.config import JobConfig

_TRAIN = Only(("train",))


class ExportsSection(PackageSection):
    """Exports while a job trains."""

    needs_model_file: ClassVar[bool] = True

    export_dir: Annotated[
        Location | None,
        Field(
            description="Export the model again and again while it is trained, into this folder "
            "or URL: a base, then what has changed. elasticdl serve follows it."
        ),
        _TRAIN,
    ] = None
    export_every: Annotated[
        str,
        Field(
            description="When the next version of that export is written: a time such as 30s or "
            "5m, or a number of updates."
        ),
        _TRAIN,
    ] = "30s"
    export_full_every: Annotated[
        PositiveInt,
        Field(
            description="One version in this number has all rows; the others have what has changed "
            "since the one before."
        ),
        _TRAIN,
    ] = 20
    keep_exports: Annotated[
        NonNegativeInt,
        Field(
            description="How many versions are kept, the newest ones, beside those that they need; "
            "0 keeps all."
        ),
        _TRAIN,
    ] = 5

    @property
    def claims(self) -> Mapping[str, Location | None]:
        """The place of the versions, to which one job writes."""
        return {"export_dir": self.export_dir}

    def check(self, job: JobConfig) -> None:
        """Refuse an export that nobody could write, and settings of none."""
        Every.of(self.export_every)
        if self.export_dir is None:
            if given := self.given():
                raise ValueError(f"--{given[0]} needs --export_dir, where to write the versions")
            return
        if job.has_worlds:
            raise ValueError(
                "--export_dir is written by those who hold all parameters: ps replicas, or a job "
                f"with --distribution_strategy={Strategy.LOCAL}; expected not "
                f"{job.training.distribution_strategy}"
            )

    def check_machine(self, job: JobConfig) -> None:
        """Refuse a folder that cannot be written to."""
        from elasticdl.cli.preflight import check_folder

        if self.export_dir is not None:
            check_folder("export_dir", self.export_dir)
