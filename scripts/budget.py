"""Prints the size of each room and its budget in `budget.toml`: `make budget`.

    python -m scripts.budget            # fails if a room is over its budget, or has none
    python -m scripts.budget --lower    # lowers budgets to present sizes; to raise one, edit it

Lines are counted as by `wc`. Generated Python does not count.
"""

from __future__ import annotations

import math
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
FILE = "budget.toml"
SHARE_TO_GROW, LINES_TO_GROW = 0.01, 40
HEAD = """\
# How large each room may be: `make budget` (scripts/budget.py) fails above these numbers. Whoever
# needs more raises the number in the same commit and says why; `python -m scripts.budget --lower`
# writes what has become smaller.
"""
Sizes = dict[str, dict[str, int]]


def sizes(root: Path) -> Sizes:
    """Return the sizes of a tree in sections, each with names and numbers."""
    core = dict(_rooms(root, "elasticdl", "*.py"))
    core.pop("elasticdl/packages", None)
    packages = dict(_rooms(root, "elasticdl/packages", "*.py"))
    python = core | packages
    rust = dict(_rooms(root, "crates", "*.rs"))
    made = root / "docs" / "site" / "generated"  # by `make docs`
    pages = [path for path in (root / "docs").rglob("*.md") if not path.is_relative_to(made)]
    return {
        "totals": {
            "lines of Python in elasticdl": sum(python.values()),
            "lines of the core, without packages": sum(core.values()),
            "files of Python in elasticdl": len(list(_files(root / "elasticdl", "*.py"))),
            "entries of elasticdl": len(list(_entries(root / "elasticdl"))),
            "lines of Rust with tests": sum(rust.values()),
            "pages of docs": len(pages),
            "lines of docs": sum(map(_num_lines, pages)),
            "targets of make": len(targets((root / "Makefile").read_text())),
        },
        "lines": {
            **python,
            **rust,
            **dict(_rooms(root, "tests", "*.py")),
            **{place: _lines_below(root / place, "*.py") for place in ("benchmarks", "scripts")},
        },
    }


def targets(makefile: str) -> set[str]:
    """Return the targets of make for people."""
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.M))


def problems(found: Sizes, budgets: Sizes) -> Iterator[str]:
    """Yield a sentence for each size that is over its budget or has none."""
    for section, numbers in found.items():
        for name, number in numbers.items():
            budget = budgets.get(section, {}).get(name)
            if budget is None:
                yield f"{name}: has {number:,} and no budget; give it one in {FILE}, [{section}]"
            elif number > budget:
                yield (
                    f"{name}: {number:,} of {budget:,}; make it smaller, or raise the number in "
                    f"{FILE} and say why in the commit"
                )


def lowered(found: Sizes, budgets: Sizes) -> Sizes:
    """Return budgets for the present sizes with room to grow, and none above the old ones."""

    def of(section: str, name: str, number: int) -> int:
        before = budgets.get(section, {}).get(name)
        if section == "lines" or name.startswith("lines"):
            wanted = _with_room(number)
        else:
            wanted = math.ceil(number * (1 + SHARE_TO_GROW)) if name.startswith("files") else number
        return wanted if before is None else min(wanted, before)

    return {
        section: {name: of(section, name, number) for name, number in numbers.items()}
        for section, numbers in found.items()
    }


def text_of(budgets: Sizes) -> str:
    """Return the text of the file of budgets."""
    parts = [HEAD]
    for section, numbers in budgets.items():
        parts += [f"\n[{section}]\n", *(f'"{name}" = {n}\n' for name, n in numbers.items())]
    return "".join(parts)


def tell(found: Sizes, budgets: Sizes) -> None:
    """Print a table of sizes and budgets."""
    table = Table("", "today", "budget")
    for section, numbers in found.items():
        for name, number in numbers.items():
            budget = budgets.get(section, {}).get(name)
            over = budget is None or number > budget
            shown = "none" if budget is None else f"{budget:,}"
            table.add_row(name, f"{number:,}", shown, style="red" if over else None)
        table.add_section()
    table.columns[1].justify = table.columns[2].justify = "right"
    Console(width=None if Console().is_terminal else 100).print(table)


def main(words: list[str]) -> int:
    """Print the table, and fail if a size is over its budget; or write lower budgets."""
    found = sizes(ROOT)
    path = ROOT / FILE
    budgets = tomllib.loads(path.read_text()) if path.exists() else {}
    if words == ["--lower"]:
        path.write_text(text_of(lowered(found, budgets)))
        return 0
    if words:
        print(__doc__, file=sys.stderr)
        return 2
    tell(found, budgets)
    over = list(problems(found, budgets))
    for problem in over:
        print(problem, file=sys.stderr)
    return 1 if over else 0


def _rooms(root: Path, place: str, pattern: str) -> Iterator[tuple[str, int]]:
    """Yield the lines of each folder in a place, and of the files beside these folders."""
    if not (root / place).is_dir():
        return
    for folder in _entries(root / place):
        if folder.is_dir() and (lines := _lines_below(folder, pattern)):
            yield f"{place}/{folder.name}", lines
    beside = (root / place).glob(pattern)
    if lines := sum(map(_num_lines, beside)):
        yield f"{place}/{pattern}", lines


def _entries(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        is_made = entry.suffix in (".so", ".pyi") or entry.name.startswith(("__", "py.typed"))
        if not is_made:
            yield entry


def _lines_below(folder: Path, pattern: str) -> int:
    return sum(map(_num_lines, _files(folder, pattern)))


def _files(folder: Path, pattern: str) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob(pattern)) if "_pb2" not in path.name)


def _num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _with_room(number: int) -> int:
    """Return a number of lines with room to grow, rounded up to ten."""
    return math.ceil((number + max(number * SHARE_TO_GROW, LINES_TO_GROW)) / 10) * 10


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
