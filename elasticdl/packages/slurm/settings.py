"""The settings of a job's tasks in Slurm."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, Field

from elasticdl.settings.launcher import LauncherFacts
from elasticdl.settings.section import PackageSection

if TYPE_CHECKING:
    from elasticdl.config import JobConfig

LAUNCHER = LauncherFacts(
    parts="elasticdl.packages.slurm.parts:PARTS",
    title="Slurm",
    description="Slurm",
    place="a task of Slurm",
    shares_folder=True,
    starts_other_roles=False,
    own_options="slurm_options",
)

_OWN = (
    *("array", "dependency", "hold", "job-name", "no-requeue", "output", "parsable", "requeue"),
    *("chdir", "error", "export", "open-mode", "signal", "wait", "wrap"),
)
"""The options of `sbatch` that the launcher sets itself."""


def _words(flag: str) -> AfterValidator:
    def check(text: str) -> str:
        """Refuse words that are not options of `sbatch`, and options that the launcher sets.

        Raises:
            ValueError: There is such a word.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ValueError(f"--{flag}: expected options of sbatch: {error}") from error
        for word in words:
            name = word.removeprefix("--").partition("=")[0]
            if not word.startswith("--") or name in _OWN:
                raise ValueError(
                    f"--{flag}: expected options of sbatch in their long form, --NAME=VALUE, and "
                    f"none of {', '.join(_OWN)}, which elasticdl gives; found {word!r}"
                )
        return text

    return AfterValidator(check)


class SlurmSection(PackageSection):
    """Slurm."""

    changes_nothing: ClassVar[bool] = True

    slurm_partition: Annotated[
        str, Field(description="Partition of all tasks [default: that of the cluster].")
    ] = ""
    slurm_account: Annotated[
        str, Field(description="Account that all tasks are charged to [default: the user's].")
    ] = ""
    slurm_time_limit: Annotated[
        str,
        Field(
            pattern=r"^(\d+([-:]\d+){0,3})?$",
            description="How long one task may run, as sbatch --time reads it; the job may last "
            "longer, for others take over before that [default: the partition's].",
        ),
    ] = ""
    slurm_options: Annotated[
        str,
        _words("slurm_options"),
        Field(description='More options of sbatch for all tasks: "--qos=low --constraint=ib".'),
    ] = ""
    slurm_worker_options: Annotated[
        str,
        _words("slurm_worker_options"),
        Field(
            description="More options of sbatch for the tasks of workers, such as "
            "--partition=preemptible; they win over those for all tasks."
        ),
    ] = ""

    def check(self, job: JobConfig) -> None:
        """Refuse the flags of Slurm where it does not run the job."""
        given = self.given()
        if given and job.launcher_name != "slurm":
            raise ValueError(f"--{given[0]} is of jobs on Slurm: give --launcher=slurm")
