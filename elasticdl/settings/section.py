"""The base of every group of settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")  # a path has lost one of its slashes
Command = Literal["train", "evaluate", "predict"]


@dataclass(frozen=True, slots=True)
class Only:
    """Marks a field that only some commands use; the others refuse its flag."""

    commands: tuple[Command, ...]


class Section(BaseModel):
    """A group of settings; `elasticdl train --help` shows each section as a panel.

    The name of a field is its flag, and its description is the help text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
