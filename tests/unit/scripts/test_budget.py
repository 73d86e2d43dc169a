"""How large a tree is, and what is over its budget."""

import tomllib

import pytest

from scripts.budget import lowered, problems, sizes, targets, text_of

PAGE = "a.md"


@pytest.fixture
def tree(tmp_path):
    files = {
        "elasticdl/__init__.py": "a\nb\n",
        "elasticdl/data/base.py": "a\n\nb\n",
        "elasticdl/rpc/elasticdl_pb2.py": "a\n" * 100,
        "elasticdl/_core.pyi": "a\n",
        "elasticdl/packages/ray/launcher.py": "a\n" * 3,
        "crates/edl-store/src/lib.rs": "a\n" * 1_000,
        "crates/edl-store/tests/all.rs": "a\n",
        "tests/unit/data/test_base.py": "a\n",
        "benchmarks/peers/loop.py": "a\n",
        "scripts/walk.py": "a\n",
        f"docs/designs/{PAGE}": "a\n",
        "Makefile": "A := b\n$(X): c\nbuild: $(X) ## it\ntest: build\n\tbuild: not\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_rooms_have_the_lines_of_their_files_without_those_that_are_generated(tree):
    found = sizes(tree)
    assert found["totals"] == {
        "lines of Python in elasticdl": 8,
        "lines of the core, without packages": 5,
        "files of Python in elasticdl": 3,
        "entries of elasticdl": 3,
        "lines of Rust with tests": 1_001,
        "pages of docs": 1,
        "lines of docs": 1,
        "targets of make": 2,
    }
    assert found["lines"] == {
        "elasticdl/data": 3,
        "elasticdl/*.py": 2,
        "elasticdl/packages/ray": 3,
        "crates/edl-store": 1_001,
        "tests/unit": 1,
        "benchmarks": 1,
        "scripts": 1,
    }


def test_a_room_over_its_budget_and_one_without_are_told():
    budgets = {"lines": {"a": 10, "b": 10}}
    over, without = problems({"lines": {"a": 11, "b": 10, "c": 1}}, budgets)
    assert over.startswith("a: 11 of 10; make it smaller, or raise the number in budget.toml")
    assert without == "c: has 1 and no budget; give it one in budget.toml, [lines]"


def test_lowering_raises_nothing_and_leaves_room_for_lines_alone():
    found = {"totals": {"pages of docs": 40}, "lines": {"a": 1_001, "b": 1_000, "c": 7}}
    before = {"totals": {"pages of docs": 50}, "lines": {"a": 900, "b": 2_000, "gone": 3}}
    after = lowered(found, before)
    assert after == {"totals": {"pages of docs": 40}, "lines": {"a": 900, "b": 1_040, "c": 50}}
    assert tomllib.loads(text_of(after)) == after


def test_a_variable_and_a_file_are_no_targets():
    assert targets("A := 1\n.PHONY: b\nc-d: e\n$(F): g\n") == {"c-d"}
