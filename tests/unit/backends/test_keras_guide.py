"""`docs/keras.md` has a row for every parameter and hook of Keras, and a test for every row."""

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import keras
import pytest

pytestmark = pytest.mark.keras

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs/keras.md"
COMPILE, FIT = "`keras.Model.compile`", "`keras.Model.fit`"
MODEL, CALLBACK = "Methods of a model", "Methods of a callback"

MODEL_METHODS = (
    "build", "call", "compute_loss", "compute_metrics", "from_config", "get_config",
    "make_predict_function", "make_test_function", "make_train_function", "metrics",
    "predict_step", "reset_metrics", "test_step", "train_step",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    section: str
    names: tuple[str, ...]  # what stands in `...` in the first cell
    means: str
    tests: tuple[str, ...]  # "file.py::name"


def rows_of(text):
    rows, section = [], ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("|") and not line.startswith(("| you write", "|---")):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert len(cells) == 3, f"{line!r}: expected three cells"
            names, means, tests = cells
            rows.append(Row(section, quoted(names), means, quoted(tests)))
    return rows


def quoted(cell):
    return tuple(re.findall(r"`([^`]+)`", cell))


def missing(rows):
    """Return what Keras has and the guide has no row for, by section."""
    wanted = {
        COMPILE: parameters(keras.Model.compile),
        FIT: parameters(keras.Model.fit),
        MODEL: MODEL_METHODS,
        CALLBACK: [name for name in dir(keras.callbacks.Callback) if name.startswith("on_")],
    }
    found = {
        section: {n for r in rows if r.section == section for n in r.names} for section in wanted
    }
    return {s: left for s, names in wanted.items() if (left := sorted({*names} - found[s]))}


def missing_optimizers(rows):
    """Return optimizers, their settings and constraints of Keras that the guide has no row for."""
    wanted = {
        "Optimizers": (kinds := classes(keras.optimizers)),
        "Settings of an optimizer": {
            "exclude_from_weight_decay",
            *(name for kind in kinds.values() for name in parameters(kind.__init__)),
        }
        - {"args", "kwargs"},
        "Constraints": classes(keras.constraints),
    }
    found = {
        section: {n for r in rows if r.section == section for n in r.names} for section in wanted
    }
    return {s: left for s, names in wanted.items() if (left := sorted({*names} - found[s]))}


def classes(module):
    kinds = filter(inspect.isclass, vars(module).values())
    return {kind.__name__: kind for kind in kinds}


def parameters(method):
    return [name for name in inspect.signature(method).parameters if name != "self"]


def faults(row, tests):
    """Return what is wrong with one row, given the names of the tests of each file."""
    if not re.match(r"\*\*(works|differs|refused)\*\*", row.means):
        yield f"{row.names}: begin the second cell with **works**, **differs** or **refused**"
    if not row.tests:
        yield f"{row.names}: has no test"
    for test in row.tests:
        file, _, name = test.partition("::")
        if name not in tests.get(file, ()):
            yield f"{row.names}: there is no test {test}"


@pytest.fixture(scope="module")
def tests_by_file():
    tests = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        tree = ast.parse(path.read_text())
        names = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        tests.setdefault(path.name, set()).update(n for n in names if n.startswith("test_"))
    return tests


def test_every_row_says_what_happens_and_has_a_test(tests_by_file):
    assert [f for row in rows_of(GUIDE.read_text()) for f in faults(row, tests_by_file)] == []


def test_every_parameter_and_hook_of_keras_has_a_row():
    assert missing(rows_of(GUIDE.read_text())) == {}


def test_every_optimizer_setting_and_constraint_of_keras_has_a_row():
    rows = rows_of(GUIDE.read_text())
    assert missing_optimizers(rows) == {}
    without = [row for row in rows if not {"Lion", "rho", "MinMaxNorm"} & {*row.names}]
    assert "Lion" in missing_optimizers(without)["Optimizers"]
    assert "rho" in missing_optimizers(without)["Settings of an optimizer"]
    assert "MinMaxNorm" in missing_optimizers(without)["Constraints"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("| `x` | works | `a.py::test_b` |", "begin the second cell"),
        ("| `x` | **works** | |", "has no test"),
        ("| `x` | **works** | `a.py::test_c` |", "there is no test a.py::test_c"),
    ],
)
def test_a_row_that_proves_nothing_is_found(row, says):
    [fault] = faults(rows_of(row)[0], {"a.py": {"test_b"}})
    assert says in fault


def test_a_parameter_without_a_row_is_found():
    assert "validation_freq" in missing(rows_of(f"## {FIT}\n| `epochs` | **works** | |"))[FIT]
