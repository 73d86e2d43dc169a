"""A kind of event: a dataclass whose fields say their meanings and units."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Self, dataclass_transform, get_type_hints

SCHEMA = 1
"""The version of the schema.

It grows when a kind or field is removed, or gets another meaning. Additions do not change it:
readers keep kinds and fields that they do not know.
"""

MASTER, WORKER, SUPERVISOR, EACH = "master", "worker", "supervisor", "each process"


_BECOMES_DATACLASS = threading.Lock()


@dataclass_transform(frozen_default=True)
class Kind:
    """One fact. Beside its fields a line has `time`, `role`, `index`, `event` and often `text`.

    A kind becomes a frozen dataclass with its first event. Each process imports all kinds and
    writes few, and to make dataclasses of all takes 30 ms of its start.

    is_beat: Whether it is written with each heartbeat; such lines are kept for a limited time only.
    """

    event: ClassVar[str]
    writer: ClassVar[str] = MASTER
    is_beat: ClassVar[bool] = False
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __new__(cls, *_values: object, **_named: object) -> Self:
        """Return an event without its fields, which `__init__` of the dataclass sets."""
        dataclass_fields(cls)
        return super().__new__(cls)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the event, by the names of the schema."""
        return dict(self.__dict__)


def dataclass_fields(kind: type[Kind]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a kind, which is a dataclass from now on."""
    with _BECOMES_DATACLASS:  # a second thread must not make it once more
        if "__dataclass_fields__" not in kind.__dict__:
            dataclass(frozen=True)(kind)
    return dataclasses.fields(kind)


@dataclass(frozen=True)
class Field:
    """The schema of a field."""

    name: str
    type: str
    means: str
    is_optional: bool


def fields_of(kind: type[Kind]) -> list[Field]:
    """Return the fields of a kind, in order."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for one in dataclass_fields(kind):
        of, means = hints[one.name].__origin__, hints[one.name].__metadata__[0]
        is_optional = one.default is not dataclasses.MISSING
        found.append(Field(one.name, _json_type(of), means, is_optional))
    return found


def _json_type(of: Any) -> str:
    simple = {int: "integer", float: "number", str: "string", bool: "true or false"}
    if of in simple:
        return simple[of]
    if of == float | None:
        return "number or null"
    if "Mapping" in str(of):
        return "object of numbers"
    return "array"
