"""Dataclasses as protobuf messages, and back, by the names and types of their fields.

A field has the same name in both. The annotation of the field decides the field of the message:

| annotation | field of the message |
|---|---|
| `int`, `float`, `bool`, `str` | of that type |
| an enumeration of strings | an enumeration with a value for each member, or a string |
| a dataclass | a message |
| `X | None` | a field that has presence; it is not set for None |
| `tuple[X, ...]` | a repeated field |
| `tuple[X, Y]` | a message with a field for each, in that order |
| `dict[str, X]` | a map |
| `MetricStates` | repeated `MetricState` |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import EnumType, StrEnum
from types import NoneType
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from elasticdl.errors import ElasticdlError
from elasticdl.job import MetricStates
from elasticdl.rpc import elasticdl_pb2 as pb

Noun = TypeVar("Noun")
Packed = TypeVar("Packed", bound=Message)


class MessageError(ElasticdlError):
    """A message without a meaning; the sender has another version, or is no part of elasticdl."""


class Codec(Generic[Noun, Packed]):
    """Packs instances of one dataclass into messages of one kind, and unpacks them."""

    def __init__(self, noun: type[Noun], message: type[Packed]) -> None:
        """Look up once how each field is packed.

        Raises:
            TypeError: The two have different fields, or a field has a type that is not in the
                table.
        """
        self._noun, self._message = noun, message
        by_name = message.DESCRIPTOR.fields_by_name
        types = get_type_hints(noun)
        names = [each.name for each in fields(cast(Any, noun))]
        if set(names) != set(by_name):
            odd = sorted(set(names) ^ set(by_name))
            raise TypeError(f"{noun.__name__}: {', '.join(odd)} is not a field of its message too")
        self._ways = {
            name: _way(types[name], cast(FieldDescriptor, by_name[name])) for name in names
        }

    def pack(self, noun: Noun) -> Packed:
        """Return the message of an instance."""
        ways = self._ways.items()
        return self._message(**{name: way.pack(getattr(noun, name)) for name, way in ways})

    def unpack(self, message: Packed) -> Noun:
        """Return the instance of a message.

        Raises:
            MessageError: A field has a value without a meaning.
        """
        return self._noun(**{name: way.unpack(message, name) for name, way in self._ways.items()})


class OneOf(Generic[Noun, Packed]):
    """Packs instances of one dataclass of several into a message with a `oneof answer`.

    The name of the field is that of the class, in lower case.
    """

    def __init__(self, message: type[Packed], *nouns: type[Noun]) -> None:
        """Look up once how each class is packed."""
        self._message = message
        self._codecs = {}
        for noun in nouns:
            name = noun.__name__.lower()
            field = message.DESCRIPTOR.fields_by_name[name]
            self._codecs[name] = Codec(noun, _class_of(cast(FieldDescriptor, field)))

    def pack(self, noun: Noun) -> Packed:
        """Return the message of an instance."""
        name = type(noun).__name__.lower()
        return self._message(**{name: self._codecs[name].pack(noun)})

    def unpack(self, message: Packed) -> Noun:
        """Return the instance of a message.

        Raises:
            MessageError: No field is set, or a field has a value without a meaning.
        """
        name = message.WhichOneof("answer")
        if name is None:
            raise MessageError(f"expected one of {', '.join(self._codecs)}, found an empty answer")
        return self._codecs[name].unpack(getattr(message, name))


@dataclass(frozen=True, slots=True)
class _Way:
    """How the value of a field is packed into a message, and unpacked."""

    pack: Callable[[Any], object]
    of_value: Callable[[Any], object]
    is_optional: bool = False

    def unpack(self, message: Message, name: str) -> object:
        # protobuf returns a default for a field that is not set.
        if self.is_optional and not message.HasField(name):
            return None
        return self.of_value(getattr(message, name))


def _way(annotation: object, field: FieldDescriptor) -> _Way:
    """Return how a field with this annotation is packed.

    Raises:
        TypeError: The annotation is not in the table, or does not fit the field of the message.
    """
    arguments = get_args(annotation)
    if field.message_type is pb.MetricState.DESCRIPTOR:
        return _Way(states_to_message, states_from_message)
    if NoneType in arguments:
        way = _way(next(each for each in arguments if each is not NoneType), field)
        return _Way(lambda value: None if value is None else way.pack(value), way.of_value, True)
    if get_origin(annotation) is dict:
        return _Way(lambda value: value, dict)
    if get_origin(annotation) is tuple and arguments[-1] is Ellipsis:
        each = _one(arguments[0], field)
        return _Way(
            lambda values: [each.pack(value) for value in values],
            lambda values: tuple(each.of_value(value) for value in values),
        )
    return _one(annotation, field)


def _one(annotation: object, field: FieldDescriptor) -> _Way:
    if annotation in (int, float, bool, str):
        return _Way(lambda value: value, lambda value: value)
    if isinstance(annotation, EnumType) and issubclass(annotation, StrEnum):
        return _of_enumeration(annotation, field)
    if get_origin(annotation) is tuple:
        return _of_tuple(get_args(annotation), field)
    if isinstance(annotation, type) and is_dataclass(annotation):
        codec = Codec(annotation, _class_of(field))
        return _Way(codec.pack, codec.unpack)
    raise TypeError(f"{field.full_name}: {annotation} cannot be in a message")


def _of_enumeration(enumeration: type[StrEnum], field: FieldDescriptor) -> _Way:
    packed: Mapping[StrEnum, int | str]
    if field.enum_type is None:
        packed = {member: str(member) for member in enumeration}
    else:
        numbers = field.enum_type.values_by_name
        # The value 0 is PREFIX_UNSPECIFIED in each enumeration of the file.
        prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
        packed = {member: numbers[prefix + member.name].number for member in enumeration}
    unpacked = {value: member for member, value in packed.items()}
    where = field.full_name.removeprefix(f"{pb.DESCRIPTOR.package}.")

    def of_value(value: int | str) -> StrEnum:
        member = unpacked.get(value)
        if member is None:
            raise MessageError(f"{where}: expected one of {', '.join(enumeration)}, found {value}")
        return member

    return _Way(packed.__getitem__, of_value)


def _of_tuple(annotations: tuple[object, ...], field: FieldDescriptor) -> _Way:
    message = _class_of(field)
    names = [each.name for each in message.DESCRIPTOR.fields]
    if len(names) != len(annotations):
        raise TypeError(f"{field.full_name}: expected {len(annotations)} fields, has {names}")
    return _Way(
        lambda values: message(**dict(zip(names, values, strict=True))),
        lambda packed: tuple(getattr(packed, name) for name in names),
    )


def _class_of(field: FieldDescriptor) -> type[Message]:
    if field.message_type is None:
        raise TypeError(f"{field.full_name}: expected a message")
    return GetMessageClass(field.message_type)


def states_to_message(states: MetricStates) -> list[pb.MetricState]:
    """Pack metric states."""
    import numpy as np  # the codec of all processes needs it here alone

    return [
        pb.MetricState(
            name=name,
            arrays=[
                pb.Array(shape=array.shape, data=np.ascontiguousarray(array, "<f8").tobytes())
                for array in arrays
            ],
        )
        for name, arrays in states.items()
    ]


def states_from_message(messages: Iterable[pb.MetricState]) -> MetricStates:
    """Unpack metric states.

    Raises:
        MessageError: An array's bytes do not fill its shape.
    """
    import numpy as np

    states: MetricStates = {}
    for message in messages:
        arrays = states.setdefault(message.name, [])
        for array in message.arrays:
            # Python's integers cannot overflow: a hostile message may have huge dimensions.
            if any(n < 0 for n in array.shape) or len(array.data) != 8 * math.prod(array.shape):
                raise MessageError(
                    f"metric {message.name!r}: expected float64 of shape {tuple(array.shape)}, "
                    f"found {len(array.data)} bytes"
                )
            values = np.frombuffer(array.data, "<f8").reshape(tuple(array.shape))
            arrays.append(values.astype(np.float64))
    return states
