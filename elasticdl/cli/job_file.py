"""Reads `--config job.yaml`, a file of flags by their names, and writes it (`--write_config`)."""

from __future__ import annotations

import functools
import itertools
import os
import textwrap
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from elasticdl.cli.flags import Flag, flags, unknown_flag
from elasticdl.config import Command, JobConfig
from elasticdl.errors import ConfigError

_WIDTH = 98
_PLAIN = str | int | float | bool


class _Words(yaml.SafeLoader):
    """Reads each value as the word that is written, and null as nothing.

    YAML itself makes a number of 12:00:00, a date of 2024-01-31, and false of off.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - as its base has it
        first: [(tag, form) for tag, form in resolvers if tag == "tag:yaml.org,2002:null"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping. A name that is there twice is an error; YAML takes the last one."""
        for key, _ in node.value:
            if isinstance(key.value, str):
                key.value = key.value.replace("-", "_")  # as on a command line
        names = [key.value for key, _ in node.value]
        for number, name in enumerate(names):
            if name in names[:number]:
                mark = node.value[number][0].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"{name} is given twice", mark)
        return super().construct_mapping(node, deep)


def read(path: Path, command: Command) -> dict[str, str]:
    """Return the flags of a file as words of a command line.

    Raises:
        ConfigError: The file cannot be read, or has a name that is no flag of the command.
    """
    try:
        found = yaml.load(path.read_text(), _Words)
    except OSError as error:
        raise ConfigError(f"--config={path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config={path}: expected YAML: {error}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(
            f"--config={path}: expected lines of the form NAME: VALUE, found "
            f"{type(found).__name__} {str(found)[:40]!r}"
        )
    known = {flag.name for flag in flags(command)}
    for name in found:
        if name not in known:
            raise ConfigError(f"--config={path}: {unknown_flag(command, str(name))}")
    return {
        name: _word(path, name, value) for name, value in found.items() if value not in (None, "")
    }


def write(path: Path, command: Command, config: JobConfig, given: Mapping[str, str]) -> None:
    """Write a file from which `read` makes the same configuration.

    The given flags are entries of the file; all other flags are comments with their defaults. If
    the file has a password, only its owner may read it.

    Raises:
        ConfigError: The file exists already, or cannot be written.
    """
    text = "\n".join(_lines(command, config, given)) + "\n"
    try:
        is_secret = config.shown() != config.model_dump(mode="json")
        # The mode is set when the file is made, so no other user can open it before.
        with open(path, "x", opener=partial(os.open, mode=0o600 if is_secret else 0o666)) as file:
            file.write(text)
    except FileExistsError as error:
        raise ConfigError(
            f"--write_config={path}: there is such a file; name another or remove it"
        ) from error
    except OSError as error:
        raise ConfigError(f"--write_config={path}: {error.strerror}") from error


def _word(path: Path, name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    # The value is left out: it may have a password in an unknown form.
    raise ConfigError(
        f"--config={path}: {name}: expected a text, a number, true or false, found "
        f"{type(value).__name__}"
    )


def _lines(command: Command, config: JobConfig, given: Mapping[str, str]) -> Iterator[str]:
    yield f"# elasticdl {command} --config=THIS_FILE; flags of the command line win."
    for panel, group in itertools.groupby(flags(command), key=lambda flag: flag.panel):
        yield ""
        yield f"# --- {panel} ".ljust(_WIDTH, "-")
        for flag in group:
            yield ""
            yield from textwrap.wrap(
                flag.field.description or "", _WIDTH, initial_indent="# ", subsequent_indent="# "
            )
            yield _line(flag, config, given)


def _line(flag: Flag, config: JobConfig, given: Mapping[str, str]) -> str:
    if flag.name in given:
        section = functools.reduce(getattr, flag.path, config)
        value = section.model_dump(mode="json")[flag.name]
        return _entry(flag.name, value if isinstance(value, _PLAIN) else given[flag.name])
    default = None if flag.field.is_required() else flag.field.get_default()
    if isinstance(default, Path | StrEnum):
        default = str(default)
    has_one = isinstance(default, _PLAIN) and default != ""
    return f"# {_entry(flag.name, default)}" if has_one else f"# {flag.name}:"


def _entry(name: str, value: Any) -> str:
    return str(yaml.safe_dump({name: value}, width=10_000, allow_unicode=True)).rstrip("\n")
