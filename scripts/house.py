"""Measures Python packages side by side: their sizes and their dependencies.

    python scripts/house.py elasticdl PATH_OF_ANOTHER_PACKAGE ...

Lines of code and comments count; empty lines do not. `Any` counts in annotations and casts. A file
is small, with one user, if it has under 81 lines and one other file of the package imports it.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

_SMALL_LINES = 81
_LONG_FUNCTION = 60


@dataclass(frozen=True, slots=True)
class House:
    """The counts of a package."""

    files: int
    lines: int
    any_uses: int
    comments: int
    small_files_of_one: int
    entries: int
    functions: list[int]

    def rows(self) -> dict[str, str]:
        """Return the rows of the table."""
        thousands = self.lines / 1000
        lengths = sorted(self.functions)
        at = [lengths[int(share * (len(lengths) - 1))] for share in (0.5, 0.9, 1.0)]
        long = sum(length > _LONG_FUNCTION for length in lengths) / len(lengths)
        return {
            "files / thousand lines": f"{self.files} / {thousands:.1f}",
            "Any a thousand lines": f"{self.any_uses / thousands:.1f}",
            "comments a thousand lines": f"{self.comments / thousands:.0f}",
            "small files with one user": str(self.small_files_of_one),
            "entries at the root": str(self.entries),
            "lines of a function: median / p90 / longest": " / ".join(map(str, at)),
            f"functions over {_LONG_FUNCTION} lines": f"{100 * long:.1f} %",
        }


def measure(package: Path) -> House:
    """Count a package; generated files (`*_pb2*`) and tests are left out."""
    paths = [
        path
        for path in sorted(package.rglob("*.py"))
        if "_pb2" not in path.name and not _is_test(path.relative_to(package))
    ]
    trees = {path: ast.parse(path.read_text()) for path in paths}
    lines = {path: num_lines(path) for path in paths}
    users = _users(package, trees)
    small = [path for path in paths if lines[path] < _SMALL_LINES and users[path] == 1]
    return House(
        files=len(paths),
        lines=sum(lines.values()),
        any_uses=sum(num_any(tree) for tree in trees.values()),
        comments=sum(map(_num_comments, paths)),
        small_files_of_one=len([path for path in small if path.name != "__init__.py"]),
        entries=len([each for each in package.iterdir() if not each.name.startswith("__pycache")]),
        functions=[length for tree in trees.values() for length in _function_lines(tree)],
    )


def _is_test(path: Path) -> bool:
    return bool({"tests", "test"} & set(path.parts)) or bool(
        re.fullmatch(r"test_.*|.*_test\.py|conftest\.py", path.name)
    )


def num_lines(path: Path) -> int:
    """Return the number of lines of a file that are not empty."""
    return sum(bool(line.strip()) for line in path.read_text().splitlines())


def num_any(tree: ast.Module) -> int:
    """Return the number of uses of `Any` in annotations, casts and aliases."""
    return sum(
        (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Attribute) and node.attr == "Any")
        for node in ast.walk(tree)
    )


def _num_comments(path: Path) -> int:
    with path.open("rb") as file:
        return sum(
            token.type == tokenize.COMMENT
            and not re.match(r"#\s*(type:|noqa|!|---|ruff|pragma)", token.string)
            for token in tokenize.tokenize(file.readline)
        )


def _function_lines(tree: ast.Module) -> list[int]:
    """Return the lines of each function without its docstring."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            found.append((body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0)
    return found


def _users(package: Path, trees: dict[Path, ast.Module]) -> Counter[Path]:
    """Return for each file the number of other files that import it."""
    by_name = {_name(package, path): path for path in trees}
    users: Counter[Path] = Counter()
    for path, tree in trees.items():
        own = _name(package, path)
        found = {by_name[name] for name in imported(tree, own, path) if name in by_name}
        users.update(found - {path})
    return users


def _name(package: Path, path: Path) -> str:
    parts = [package.name, *path.relative_to(package).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, own: str, path: Path) -> set[str]:
    """Return the modules that a file may import. Some may be names inside modules."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = own.split(".") if path.name == "__init__.py" else own.split(".")[:-1]
            base = base[: len(base) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def main(places: list[str]) -> int:
    """Print a table with a column for each package."""
    if not places:
        print(__doc__, file=sys.stderr)
        return 2
    houses = {Path(place).name: measure(Path(place)).rows() for place in places}
    table = Table("", *houses)
    for row in next(iter(houses.values())):
        table.add_row(row, *(house[row] for house in houses.values()))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
