"""Finds names in a model file that were meant for a job, but that no job would read.

A user who writes `num_epochs = 3` at the top of a model file, or `def callback()`, expects an
effect. The error names the flag or function with that effect. A name that the file itself reads
belongs to the file, so it is no error. Packages bring the names of their frameworks (`OtherNames`).
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.cli.other_names import OtherNames, other_names
from elasticdl.cli.preflight import find_model_file
from elasticdl.config import JobConfig
from elasticdl.errors import ModelError
from elasticdl.launchers import choose

_OTHER = "if it is your own, give it another name, such as one with a leading _"
_SIMILAR = 0.8
_MISSPELT = 0.9  # class_weights, lossWeights, num_epoch
_MOST_WORDS = 3  # get_my_callbacks
_LOOKING = frozenset({"globals", "vars", "locals", "eval", "exec"})
_SYNONYMS = {
    "criterion": "loss",
    "metrics_fn": "eval_metrics_fn",
    "data_reader": "custom_data_reader",
}
_METRICS = "a function eval_metrics_fn() returns them"
# Another function or flag has the meaning of these names; the last ones are no flags.
_IN_FILE = {
    "learning_rate": "--learning_rate, which is given to optimizer(lr)",
    "lr": "--learning_rate, which is given to optimizer(lr)",
    "metrics": _METRICS,
    "minibatch_size": "--minibatch_size",
    "num_epochs": "--num_epochs",
    "run_eagerly": "--run_eagerly",
    "shuffle": "--shuffle and --shuffle_tasks, or dataset.shuffle in feed",
    "validation_data": "--validation_data",
    "validation_split": "--validation_split",
    "weighted_metrics": "a function weighted_metrics_fn() returns them",
    "x": "--training_data says where records are, and feed makes features of them",
    "y": "--training_data says where records are, and feed makes labels of them",
}
_OWN = OtherNames(in_file=_IN_FILE, functions=("metrics", "weighted_metrics"))


@dataclass(slots=True)
class _Names:
    """The names at the top of a model file, and of files of the same zoo that it imports from.

    Attributes:
        assigned: The names of values, each with its line and the assigned expression.
        defined: The names of functions and classes, each with its line.
        imported: All other names.
        read: The names that the file reads anywhere.
    """

    assigned: dict[str, tuple[int, ast.expr | None]] = field(default_factory=dict)
    defined: dict[str, int] = field(default_factory=dict)
    imported: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)

    def unread(self) -> Iterator[tuple[str, int]]:
        """Yield the names that the file defines and does not read."""
        made = {name: line for name, (line, _) in self.assigned.items()} | self.defined
        for name, line in sorted(made.items(), key=lambda item: item[1]):
            if name not in self.read and not name.startswith("_"):
                yield name, line

    def all(self) -> set[str]:
        """Return all names of the module."""
        return {*self.assigned, *self.defined, *self.imported}


def check_model_file(config: JobConfig) -> list[str]:
    """Check the names in the model file of a job, if this machine has it; there are no notes."""
    is_here = config.launcher.sees_files or choose.parts_of(config).sees_model_zoo(config)
    if config.model.script is None and is_here:
        function = config.model.model_def.rpartition(".")[2]
        check_names(find_model_file(config), config.model.functions(), {function, "dataset_fn"})
    return []


def check_names(path: Path, own: Mapping[str, str], others: Collection[str] = ()) -> None:
    """Refuse a model file with names that no job reads, or that are nearly elasticdl's names.

    Args:
        path: The file; it can be parsed.
        own: The names that a job reads, by the flag that gives the name.
        others: The names that a job reads, but that may be absent.

    Raises:
        ModelError: A name has no effect; the error has the file, the line, the name, and the right
            name.
    """
    names = _Names()
    _read(path, names, {path})
    # Such a file may read any of its names without writing them.
    if names.read & _LOOKING or "__getattr__" in names.defined:
        return
    _check_kinds(path, names, own)
    others_names = [_OWN, *other_names(names.imported)]
    owners = {name: each for each in others_names for name in each.in_file}
    meanings = {name: owner.in_file[name] for name, owner in owners.items()}
    functions = {name for each in others_names for name in each.functions}
    taken = {*own.values(), *others}
    _check_near(path, names, own, {*taken, *meanings})
    for name, line in names.unread():
        meant = _meant(name, meanings)
        if name in taken or (name in names.defined and meant not in functions):
            continue
        loss = own.get("loss")  # one that is assigned may stand in place of an imported function
        is_function = loss in names.defined and loss not in names.assigned
        has_effect = meant is not None and name in owners[meant].beside_a_loss
        if has_effect and name in names.assigned and not is_function:
            continue
        if meant:
            raise ModelError(
                f"{path}:{line}: {name} at the top of a model file is read by no job; "
                f"{meanings[meant]}; {_OTHER}"
            )


def _meant(name: str, meanings: Collection[str]) -> str | None:
    """Return the known name that a name is, or nearly is; names in capitals belong to the file."""
    if name in meanings:
        return name
    # Spellings such as lossWeights and loss_weights count as equal.
    plain = name.replace("_", "").lower()
    ratios = {
        other: difflib.SequenceMatcher(None, plain, other.replace("_", "")).ratio()
        for other in meanings
        if name != name.upper()
    }
    nearest = max(ratios, key=lambda other: ratios[other], default="")
    return nearest if ratios.get(nearest, 0.0) >= _MISSPELT else None


def _check_near(path: Path, names: _Names, own: Mapping[str, str], taken: Collection[str]) -> None:
    """Refuse names that are nearly the names that a job reads, if the job's own name is absent."""
    there = names.all()
    missing = {flag: name for flag, name in own.items() if name not in there}
    if "dataset_fn" in there:
        # A job also accepts `dataset_fn`, the earlier name of `feed`.
        missing.pop("feed", None)
    for name, line in names.unread():
        if name in taken:
            continue
        for flag, wanted in missing.items():
            if _is_near(name, wanted):
                raise ModelError(
                    f"{path}:{line}: {name} is read by no job, which looks for {wanted}; rename "
                    f"it, or say --{flag}={name}; {_OTHER}"
                )


def _is_near(name: str, wanted: str) -> bool:
    plain, target = name.lower(), wanted.lower()
    words = plain.split("_")
    if _SYNONYMS.get(plain) == wanted or (target in words and len(words) <= _MOST_WORDS):
        return True
    return difflib.SequenceMatcher(None, plain, target).ratio() >= _SIMILAR


def _check_kinds(path: Path, names: _Names, own: Mapping[str, str]) -> None:
    """Refuse a value where a job calls a function; a loss may also be an argument for `compile`."""
    for flag, name in own.items():
        if flag == "loss" or name not in names.assigned or name in names.defined:
            continue
        line, value = names.assigned[name]
        is_none = isinstance(value, ast.Constant) and value.value is None
        if isinstance(value, ast.List | ast.Tuple | ast.Dict | ast.Constant) and not is_none:
            raise ModelError(
                f"{path}:{line}: expected a function {name}, found {ast.unparse(value)[:60]}; "
                f"write def {name}(): return ..."
            )


def _read(path: Path, names: _Names, seen: set[Path]) -> None:
    """Add the names of a file."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError):  # told where the file is needed
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.read.add(node.id)
    _gather(tree.body, names, path, seen)


def _gather(body: Iterable[ast.stmt], names: _Names, path: Path, seen: set[Path]) -> None:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.defined[node.name] = node.lineno
            case ast.Import():
                names.imported.update(a.asname or a.name.split(".")[0] for a in node.names)
            case ast.ImportFrom():
                _import(node, names, path, seen)
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for part in ast.walk(target):
                        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                            names.assigned[part.id] = (node.lineno, node.value)
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try() | ast.TryStar():
                for block in ("body", "orelse", "finalbody"):
                    _gather(getattr(node, block, ()), names, path, seen)
                for handler in getattr(node, "handlers", ()):
                    _gather(handler.body, names, path, seen)


def _import(node: ast.ImportFrom, names: _Names, path: Path, seen: set[Path]) -> None:
    """Add the names of another file of the user, if all its names are imported with a star."""
    plain = {a.asname or a.name for a in node.names if a.name != "*"}
    names.imported |= plain | {(node.module or "").split(".")[0]}
    if len(plain) == len(node.names):
        return
    folders = [path.parents[node.level - 1]] if node.level else [path.parent, *path.parents[1:3]]
    for folder in folders:
        other = folder.joinpath(*(node.module or "").split(".")).with_suffix(".py")
        # Files may import each other, and each is read once.
        if other.is_file() and other not in seen:
            seen.add(other)
            _read(other, names, seen)
            return
