"""Makes options of the fields of `elasticdl.config`, and makes a configuration of options.

The value of an option is a word. Pydantic alone makes values of words, so a flag and a field of
`job.json` obey the same rules, and every error has the same form.
"""

from __future__ import annotations

import difflib
import os
import types
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import rich_click as click
from pydantic import ByteSize, ValidationError
from pydantic.fields import FieldInfo

from elasticdl import registry
from elasticdl.config import Command, JobConfig, Only, Section
from elasticdl.errors import ConfigError
from elasticdl.job import Strategy
from elasticdl.settings.model import KERAS_BACKENDS, KERAS_VARIABLE

REMOVED = {
    "otlp_endpoint": "a collector of OpenTelemetry reads /metrics of the job's page, by its "
    "receiver prometheus",
}
"""The flags that this version no longer has, with what to use in their place."""


FIRST_PANEL = "What most jobs say"
FIRST = (
    *("model_zoo", "model_def", "training_data", "validation_data", "prediction_data"),
    *("checkpoint_dir_for_init", "saved_model", "num_epochs", "minibatch_size", "learning_rate"),
    *("distribution_strategy", "num_workers", "output"),
)
"""The help of a command begins with those of these flags that the command has."""

_NOT_FIRST = {"train": ("prediction_data", "checkpoint_dir_for_init", "saved_model")}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the command line: one field of one section of `JobConfig`.

    path: The place of the section in `JobConfig`: ("training",), or ("packages", "trackers").
    """

    path: tuple[str, ...]
    panel: str
    name: str
    field: FieldInfo

    @property
    def commands(self) -> tuple[Command, ...]:
        """The commands in which the flag has an effect."""
        for mark in self.field.metadata:
            if isinstance(mark, Only):
                return mark.commands
        return get_args(Command)


def flags(command: Command | None = None) -> Iterator[Flag]:
    """Yield the flags of a command, or of any command, in the order of `elasticdl.config`."""
    for path, kind in _sections(JobConfig, ()):
        panel = (kind.__doc__ or path[-1]).splitlines()[0].rstrip(".")
        for name, setting in kind.model_fields.items():
            flag = Flag(path, panel, name, setting)
            if _section_of(setting) is None and (command is None or command in flag.commands):
                yield flag


def _sections(
    kind: type[Section], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], type[Section]]]:
    """Yield the sections below a section, each with its place."""
    for name, field in kind.model_fields.items():
        if (below := _section_of(field)) is not None:
            yield (*path, name), below
            yield from _sections(below, (*path, name))


def _section_of(field: FieldInfo) -> type[Section] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def in_order_of_use(command: Command) -> Iterator[tuple[Flag, str]]:
    """Yield the flags of a command and their panels; the ten flags that most jobs use are first."""
    known = {flag.name: flag for flag in flags(command)}
    left_out = _NOT_FIRST.get(command, ())
    first = [known[name] for name in FIRST if name in known and name not in left_out]
    yield from ((flag, FIRST_PANEL) for flag in first)
    yield from ((flag, flag.panel) for flag in known.values() if flag not in first)


def option(flag: Flag, panel: str = "") -> click.RichOption:
    """Return the option of a flag. Its value is a word, or None if there is no default."""
    is_switch = flag.field.annotation is bool
    default = _default_word(flag.field)
    return click.RichOption(
        [f"--{flag.name}"],
        type=str,
        required=flag.field.is_required(),
        # `--use_async` alone means true, as everybody expects of a switch.
        is_flag=False,
        # Only a switch has a flag value: an option with one takes no value that begins with "-".
        **({"flag_value": "true"} if is_switch else {}),
        default=default,
        show_default=default is not None,
        metavar=_metavar(flag.field.annotation),
        help=flag.field.description,
        panel=panel or flag.panel,
    )


def build_config(command: Command, words: Mapping[str, str | None]) -> JobConfig:
    """Return the configuration that the given flags describe.

    Raises:
        ConfigError: A value does not fit its flag, or flags do not fit together; one line each.
    """
    values: dict[str, Any] = {"command": command}
    for flag in flags(command):
        section = values
        for name in flag.path:
            section = section.setdefault(name, {})
        word = words.get(flag.name)
        if word:  # an empty one is as none: `--validation_data=$NOT_SET`
            section[flag.name] = word
    backend = os.environ.get(KERAS_VARIABLE)
    if backend in KERAS_BACKENDS:  # others are refused where a model of Keras is loaded
        values.get("model", {}).setdefault("keras_backend", backend)
    try:
        return JobConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_complaints(error))) from error


def refuse_flags_as_values(words: Mapping[str, str]) -> None:
    """Refuse a flag in the place of the value of the flag before it: `--output --num_workers=2`.

    Raises:
        ConfigError: A value is a flag; the error names both flags.
    """
    known = {flag.name for flag in flags()}
    for name, word in words.items():
        value = word.removeprefix("--").partition("=")[0].replace("-", "_")
        if word.startswith("--") and value in known:
            raise ConfigError(f"--{name}: expected a value, found the flag {word}")


def check_given(config: JobConfig, given: Container[str]) -> None:
    """Refuse flags that were given and would have no effect.

    Raises:
        ConfigError: A flag concerns processes that the strategy does not start, or files that are
            not written.
    """
    if "keep_checkpoint_max" in given and config.checkpoint.checkpoint_dir is None:
        raise ConfigError("--keep_checkpoint_max needs --checkpoint_dir, where they are written")
    strategy = config.training.distribution_strategy
    if strategy is Strategy.ALLREDUCE:
        for name in ("num_ps_pods", "ps_recovery"):
            if name in given:
                raise ConfigError(
                    f"--{name} has no effect with --distribution_strategy={strategy}, where "
                    "workers hold the parameters; expected "
                    f"--distribution_strategy={Strategy.PARAMETER_SERVER}"
                )
    if strategy is not Strategy.LOCAL:
        return
    for name in ("num_workers", "num_ps_pods", "ps_recovery", "master_port", "dashboard_port"):
        if name in given:
            raise ConfigError(
                f"--{name} has no effect with --distribution_strategy=Local, which uses one "
                f"process; expected --distribution_strategy={Strategy.PARAMETER_SERVER}"
            )


def unknown_flag(command: str, name: str) -> str:
    """Return the message for an unknown flag of a command, with the nearest known flag."""
    name = name.lstrip("-").replace("-", "_")
    owners = next((flag.commands for flag in flags() if flag.name == name), ())
    if owners:
        homes = " and ".join(f"elasticdl {owner}" for owner in owners)
        return f"--{name} has no meaning for elasticdl {command}, only for {homes}"
    if name in REMOVED:
        return f"--{name} was removed; in its place: {REMOVED[name]}"
    for program, others in registry.brought("other_flags").items():
        if name in others:
            return f"unknown flag --{name} (of {program}); here: {others[name]}"
    near = _near(name, [flag.name for flag in flags() if command in flag.commands])
    hint = f"; did you mean {' or '.join(f'--{each}' for each in near)}?" if near else ""
    return f"unknown flag --{name}{hint}"


def _near(name: str, known: Sequence[str]) -> list[str]:
    """Return the flags with one word more, or else the flag with nearly the same spelling."""
    words = set(name.split("_"))
    longer = [f for f in known if words < set(f.split("_")) and f.count("_") == len(words)]
    return longer if 0 < len(longer) <= 2 else difflib.get_close_matches(name, known, n=1)


def _complaints(error: ValidationError) -> Iterator[str]:
    known = {flag.name for flag in flags()}
    for item in error.errors():
        flag = str(item["loc"][-1]) if item["loc"] else ""
        if item["type"] == "missing":
            yield f"--{flag} is needed"
        elif item["type"] == "value_error":
            text = str(item["ctx"]["error"])
            yield text if "--" in text or flag not in known else f"--{flag}: {text}"
        else:
            expected = item["msg"].removeprefix("Input should be ").split(", unable to")[0]
            if expected.startswith(("greater", "less")):
                expected = f"a number {expected}"
            if item["type"] == "string_pattern_mismatch":
                expected = f"text of the form {item['ctx']['pattern']}"
            yield f"--{flag}: expected {expected}, found {item['input']!r}"


def _default_word(field: FieldInfo) -> str | None:
    value = None if field.is_required() else field.get_default()
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _metavar(kind: Any) -> str:
    """Return the form of a type's values, such as `INTEGER` or `stop|skip`."""
    if get_origin(kind) in (Union, types.UnionType):
        return "|".join(_metavar(part) for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if get_origin(kind) is not None:  # Annotated, as in PositiveInt | None
        return _metavar(get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "NAME"
    if kind is ByteSize:
        return "BYTES"
    return {int: "INTEGER", float: "NUMBER", bool: "true|false", Path: "PATH"}.get(kind, "TEXT")
