"""`python -m scripts.event_kinds FILE`: write the schema's tables into docs/events.md."""

from __future__ import annotations

import sys
from pathlib import Path

from elasticdl.observe.kind import SCHEMA, Kind, fields_of
from elasticdl.observe.kinds import all_kinds

BEGIN, END = "<!-- kinds: begin -->", "<!-- kinds: end -->"


def tables() -> str:
    """Return every kind of event with its fields, as Markdown."""
    parts = [f"Schema version {SCHEMA}."]
    for title, is_beat in (("Facts", False), ("With each heartbeat", True)):
        kinds = [kind for kind in all_kinds().values() if kind.is_beat is is_beat]
        parts.append("\n".join([f"### {title}", "", *_table(kinds)]))
    return "\n\n".join(parts)


def _table(kinds: list[type[Kind]]) -> list[str]:
    lines = ["| event | written by | what it says |", "|---|---|---|"]
    for kind in kinds:
        fields = [
            f"`{field.name}`{' (optional)' if field.is_optional else ''}: {field.means} "
            f"({field.type})"
            for field in fields_of(kind)
        ]
        says = "<br>".join([_sentence(kind), *fields])
        lines.append(f"| **{kind.event}** | {kind.writer} | {says} |")
    return lines


def _sentence(kind: type[Kind]) -> str:
    assert kind.__doc__ is not None
    return " ".join(kind.__doc__.split())


def rewritten(text: str) -> str:
    """Return a page with the tables of this schema."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(rewritten(page.read_text()))
