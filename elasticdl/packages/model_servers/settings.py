"""Settings of model servers: how many there are, and how long a request waits for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, NonNegativeInt

from elasticdl.job import Role, Strategy
from elasticdl.settings.section import Only, PackageSection

if TYPE_CHECKING:
    from elasticdl.config import JobConfig

_TRAIN = Only(("train",))
_WITH_ROWS = (Strategy.PARAMETER_SERVER, Strategy.HYBRID)


class ModelServersSection(PackageSection):
    """Model servers."""

    needs_model_file: ClassVar[bool] = True

    num_model_servers: Annotated[
        NonNegativeInt,
        Field(
            description="Model servers, which compute the parts of the model that are in "
            "elasticdl.layers.Remote; 0: each worker computes them itself."
        ),
        _TRAIN,
    ] = 0
    model_server_window_seconds: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="How long a model server waits for the requests of other workers, to "
            "compute each id of them once; it does not wait when all workers have asked.",
        ),
        _TRAIN,
    ] = 0.002

    @property
    def processes(self) -> Mapping[Role, int]:
        """The model servers."""
        return {Role.MODEL_SERVER: self.num_model_servers} if self.num_model_servers else {}

    def check(self, job: JobConfig) -> None:
        """Refuse a job without ps replicas, and flags with which model servers do not go."""
        if not self.num_model_servers:
            if given := self.given():
                raise ValueError(f"--{given[0]} is of model servers: give --num_model_servers too")
            return
        flag = f"--num_model_servers={self.num_model_servers}"
        strategy = job.training.distribution_strategy
        if strategy not in _WITH_ROWS:
            raise ValueError(
                f"{flag}: a model server takes rows from ps replicas: expected "
                f"--distribution_strategy={' or '.join(_WITH_ROWS)}, found {strategy}; without the "
                "flag each worker computes what is in elasticdl.layers.Remote itself"
            )
        for other, is_given in self._others(job).items():
            if is_given:
                raise ValueError(
                    f"{flag} does not go with {other} so far: expected one of them; without the "
                    "first each worker computes what is in elasticdl.layers.Remote itself"
                )

    def _others(self, job: JobConfig) -> Mapping[str, bool]:
        """Return the flags that do not go with model servers, each with whether it is given."""
        return {
            f"--launcher={job.launcher_name}": not job.launcher.starts_other_roles,
            "--export_dir": job.is_given("export_dir"),
            "--on_nan=skip": job.training.on_nan == "skip",
            "--torch_compile": job.model.torch_compile,
            "--output_tables=parquet": job.checkpoint.output_tables == "parquet",
            "--tls=files": job.cluster.tls == "files",
            "--trace": job.is_given("trace"),
        }
