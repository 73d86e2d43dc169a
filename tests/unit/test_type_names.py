"""The name of a public type means one thing, and a word of the glossary no other.

What two frameworks have of one kind has one name, in the room of each; and what happened to a thing
may be called like it in the event log (`observe/kinds.py`).
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from elasticdl.registry import packages

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "elasticdl"

# Users write one of these two; the other never meets it.
ALSO = {
    "Label": {"packages/keras/preprocessing/tabular.py"},
    "Table": {"packages/keras/preprocessing/tabular.py"},
}


def modules_by_type():
    found = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_pb2" in path.name:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(path.relative_to(PACKAGE).as_posix())
    return found


def meaning_of(name, module):
    """Return what stands for a module where one meaning may have several."""
    if module in ALSO.get(name, ()):
        return None
    if re.match(r"(packages/(jax|keras|torch)|layers)/", module):
        return "of a framework"
    return None if module == "observe/kinds.py" else module


def test_a_type_has_a_name_of_its_own():
    several = {}
    for name, modules in modules_by_type().items():
        meanings = {meaning_of(name, module) for module in modules} - {None}
        if len(meanings) > 1:
            several[name] = sorted(modules)
    assert not several


@pytest.mark.skipif("all_reduce" not in packages(), reason="it has words of packages too")
def test_the_glossary_names_types_that_exist():
    glossary = (ROOT / "docs" / "concepts.md").read_text().split("## Glossary")[1]
    named = set(re.findall(r"`([A-Z]\w+)`", glossary))
    assert named
    assert named <= set(modules_by_type())
