"""Reads a model file without importing it: finds its embedding tables and its framework."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from elasticdl.backends.known import known

_LAYERS = {"Embedding", "EmbeddingBag", "SparseEmbedding"}
_HOMES = ("elasticdl.layers", "elasticdl.preprocessing")
_TABULAR = "elasticdl.preprocessing.tabular"
_OF_TABLE = {"vectors", "linear", "flat"}  # of `preprocessing.tabular.Table`
_WITHOUT_TABLES = {"numpy", "math", "functools", "typing"}


def has_tables(path: Path, function: str) -> bool | None:
    """Return whether the model of a function has embedding tables of elasticdl.

    None: the file does not tell, since the tables are made under a condition or in another file.
    """
    tree = ast.parse(path.read_bytes())
    imports = dict(_imports(tree))
    reached = list(_reached(tree, function))
    if not reached:
        return None
    for node in reached:
        if any(_is_table(call, imports) for call in _calls(node)):
            return True
    names = {name for node in reached for name in _names(node)}
    words = names | {
        part.attr for node in reached for part in ast.walk(node) if isinstance(part, ast.Attribute)
    }
    # A name from an unknown package may make a table, so "no table" is said only without such
    # names.
    frameworks = {name for backend in known().values() for name in backend.imports}
    without = _WITHOUT_TABLES | frameworks
    is_known = all(imports[n].split(".")[0] in without for n in names & imports.keys())
    is_clear = not any("mbedding" in word for word in words) and "*" not in imports
    return False if is_known and is_clear else None


def imported_by(path: Path) -> set[str]:
    """Return the packages that a file imports."""
    tree = ast.parse(path.read_bytes())
    return {place.split(".")[0] for _, place in _imports(tree)}


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that a file imports, each with its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.split(".")[0],
                    (alias.name if alias.asname else alias.name.split(".")[0]),
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module or '.'}.{alias.name}"
                if alias.name == "*":  # what of it is looked for
                    for name in (*_LAYERS, "Table"):
                        yield name, f"{node.module or '.'}.{name}"


def _reached(tree: ast.Module, function: str) -> Iterator[ast.AST]:
    """Yield the definition of a name, and of all names at the top of the file that it uses."""
    known: dict[str, ast.AST] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            known[node.name] = node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        known[part.id] = node
    todo, seen = [function], set()
    while todo:
        name = todo.pop()
        if name in known and name not in seen:
            seen.add(name)
            yield known[name]
            todo += _names(known[name])


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that are always made; calls under a condition are left out."""
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.If | ast.IfExp | ast.Try | ast.While | ast.Match):
            yield from _calls(child)


def _is_table(call: ast.Call, imports: Mapping[str, str]) -> bool:
    name = _dotted(call.func)
    if name is None:
        # `TABLE.encode(inputs).linear()`, of which the first part is no name.
        return _is_of_table(call, imports)
    first, _, rest = name.partition(".")
    full = imports.get(first, first) + (f".{rest}" if rest else "")
    is_layer = full.rpartition(".")[2] in _LAYERS and full.startswith(_HOMES)
    return is_layer or _is_of_table(call, imports)


def _is_of_table(call: ast.Call, imports: Mapping[str, str]) -> bool:
    has_table = not {_TABULAR, f"{_TABULAR}.Table"}.isdisjoint(imports.values())
    return has_table and isinstance(call.func, ast.Attribute) and call.func.attr in _OF_TABLE


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None
