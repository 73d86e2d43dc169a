"""What every group of settings is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

Command = Literal["train", "evaluate", "predict"]


@dataclass(frozen=True, slots=True)
class Only:
    """Marks a field that has a meaning for some commands; the others refuse its flag."""

    commands: tuple[Command, ...]


class Section(BaseModel):
    """A group of settings; `elasticdl train --help` shows each section as a panel.

    A field's name is its flag, its description the help text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
