"""The base of every group of settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from elasticdl.job import Role
from elasticdl.locations import Location

if TYPE_CHECKING:
    from elasticdl.config import JobConfig

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")  # a path has lost one of its slashes
Command = Literal["train", "evaluate", "predict"]


@dataclass(frozen=True, slots=True)
class Only:
    """Marks a field that only some commands use; the others refuse its flag."""

    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Needs:
    """A flag needs modules, which an extra of the distribution installs."""

    flag: str
    extra: str
    modules: tuple[str, ...]


class Section(BaseModel):
    """A group of settings; `elasticdl train --help` shows each section as a panel.

    The name of a field is its flag, and its description is the help text.
    """

    # JSON, in which the settings of a job are kept, has no inf and no nan.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _paths_are_no_urls(self) -> Self:
        """Refuse a path such as `s3:/bucket`: it would be a folder below the current one."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Path) and _URL.match(str(value)):
                raise ValueError(f"--{name}: expected a path, found the URL {value}")
        return self

    def given(self) -> list[str]:
        """Return the names of the settings that differ from their defaults."""
        return [
            name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.get_default()
        ]


class PackageSection(Section):
    """The settings that a package brings; a job has them by `JobConfig.of`.

    Attributes:
        changes_nothing: A job may go on with other ones, for they change nothing of what is
            trained.
        may_differ: The settings that may be other ones when a job goes on, where not all may.
        needs_model_file: `elasticdl run`, whose script has a model of its own, lacks its flags.
        needs: The modules that its flags need on the machine of the command.
        shown_as: Functions by the names of settings: each makes a form that anybody may see.
    """

    changes_nothing: ClassVar[bool] = False
    may_differ: ClassVar[tuple[str, ...]] = ()
    needs_model_file: ClassVar[bool] = False
    needs: ClassVar[tuple[Needs, ...]] = ()
    shown_as: ClassVar[Mapping[str, Callable[[str], str]]] = {}

    @classmethod
    def free(cls) -> tuple[str, ...]:
        """Return the names of the settings that may be other ones when a job goes on."""
        return tuple(cls.model_fields) if cls.changes_nothing else cls.may_differ

    @property
    def trains_on(self) -> str:
        """What yields the training records in the place of --training_data; "": nothing."""
        return ""

    @property
    def claims(self) -> Mapping[str, Location | None]:
        """The places that no other running job may write to, by flag."""
        return {}

    @property
    def destinations(self) -> Mapping[str, Location | None]:
        """The folders into which a training job writes, by flag."""
        return self.claims

    @property
    def processes(self) -> Mapping[Role, int]:
        """How many processes a job has for the package, by role."""
        return {}

    def check(self, job: JobConfig) -> None:
        """Check that the settings fit those of the job.

        Raises:
            ValueError: They do not fit. The message names the flag, what was expected and found.
        """

    def check_machine(self, job: JobConfig) -> None:
        """Check that this machine has what the settings need, before the job starts.

        Raises:
            ConfigError: Something is missing; says what to do.
        """
