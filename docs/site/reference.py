"""Makes the page of all commands and flags of the program itself, and reads docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from elasticdl.cli.main import cli

INTRODUCTION = """# Commands and flags

Every command, and every flag in the words of `--help`. A flag is written with `_` or with `-`:
`--num-workers=2` is `--num_workers=2`. Flags of a job can
also be given as a file ([commands](../../commands.md)).
"""


def write_pages(folder: Path) -> None:
    """Write the page; a file whose words have not changed is left, so that it is not read again."""
    folder.mkdir(exist_ok=True, parents=True)
    write_if_new(folder / "commands.md", "\n".join([INTRODUCTION, *of_command(cli, "elasticdl")]))


def write_if_new(path: Path, text: str) -> None:
    """Write a file unless it has this text."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def of_command(command: click.Command, name: str) -> Iterator[str]:
    """Yield the lines about a command, and about those below it."""
    context = click.Context(command, info_name=name)
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            if below is not None and not below.hidden:
                yield from of_command(below, f"{name} {word}")
        return
    yield f"## {name}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\n{name} {usage}\n```\n"
    yield paragraphs(command.help or "")
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(context):
        if (record := param.get_help_record(context)) is not None:
            panels.setdefault(getattr(param, "panel", None) or "", []).append(record)
    for panel, rows in panels.items():
        if panel:
            yield f"### {panel}\n"
        yield from (line for words, about in rows for line in of_flag(words, about))


def of_flag(words: str, about: str) -> Iterator[str]:
    """Yield the lines of a flag: its words, and under them what it is for."""
    yield f"`{words}`"
    yield f": {plain(about) or '-'}\n"


def paragraphs(text: str) -> str:
    """Return a help text as Markdown; a part that click may not wrap stays as it is."""
    parts = []
    for part in text.split("\n\n"):
        if part.lstrip().startswith("\b"):
            lines = part.replace("\b", "").strip("\n")
            parts.append(f"```text\n{lines}\n```")
        else:
            parts.append(plain(" ".join(part.split())))
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Return words whose characters Markdown would take for its own, escaped."""
    for sign in "\\*_[]<>|$":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


FIELD = re.compile(r"[a-z_]\w*(?:, [a-z_]\w*)*: \S")


def read_docstring(app, what, name, obj, options, lines):
    """Mark what our docstrings have and Sphinx does not see (`autodoc-process-docstring`).

    Fields are lines `name: what it is`, and an indented paragraph is code.
    """
    marked = []
    for line in lines:
        begins = not marked or not marked[-1].strip()
        in_fields = bool(marked) and bool(re.match(r":[\w, ]+: | {4}", marked[-1]))
        if in_fields and line.strip() and not line.startswith(" ") and not FIELD.match(line):
            marked.append("")  # a paragraph follows
        if FIELD.match(line) and (begins or in_fields):
            line = ":" + line.replace(": ", ":  ", 1)
        elif line.startswith("    ") and marked and begins and not in_block(marked):
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked


def in_block(lines: list[str]) -> bool:
    """Whether the last line that is not blank is indented, so that a block goes on."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    return last.startswith(" ")
