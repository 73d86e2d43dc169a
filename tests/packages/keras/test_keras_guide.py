"""`docs/keras.md` has a row for every parameter and hook of Keras.

A test shows every row of it and of `docs/torch.md`: `shown_by.toml` says which.
"""

import inspect
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import keras
import pytest

pytestmark = pytest.mark.keras

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs/keras.md"
COMPILE, FIT = "`keras.Model.compile`", "`keras.Model.fit`"
AS_IN_KERAS = "As in Keras"
VERDICT = re.compile(r"\*\*(works|differs|refused)\*\*|here alone")
MODEL, CALLBACK = "Methods of a model", "Methods of a callback"

MODEL_METHODS = (
    "build", "call", "compute_loss", "compute_metrics", "from_config", "get_config",
    "make_predict_function", "make_test_function", "make_train_function", "metrics",
    "predict_step", "reset_metrics", "test_step", "train_step",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    section: str
    cell: str  # the first one, by which shown_by.toml names the row
    means: str

    @property
    def names(self):
        """What stands in `...` in the first cell, or in a line of what is as in Keras."""
        return quoted(self.means if self.cell == AS_IN_KERAS else self.cell)


def rows_of(text):
    rows, section = [], ""
    for line in text.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith(f"{AS_IN_KERAS}:"):
            rows.append(Row(section, AS_IN_KERAS, line))
        elif line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if len(cells) == 2 and VERDICT.match(cells[1]):
                rows.append(Row(section, *cells))
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


def without_a_test(rows, shown):
    """Return the rows that no test shows, and what is shown and is no row."""
    told = {(row.section, row.cell) for row in rows}
    known = {
        (section, cell) for section, of in shown.items() for cell, tests in of.items() if tests
    }
    return sorted(told ^ known)


@pytest.fixture(scope="module")
def shown_by():
    return tomllib.loads(Path(__file__).with_name("shown_by.toml").read_text())


@pytest.mark.parametrize("page", ["keras", "torch"])
def test_every_row_has_a_test(page, shown_by):
    rows = rows_of((ROOT / f"docs/{page}.md").read_text())
    assert len(rows) > 80
    assert without_a_test(rows, shown_by[page]) == []
    assert without_a_test(rows[1:], shown_by[page]) == [(rows[0].section, rows[0].cell)]


def test_the_tests_that_show_rows_exist(shown_by):
    sources = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        sources[path.name] = sources.get(path.name, "") + path.read_text()
    named = {
        test
        for page in shown_by.values()
        for of in page.values()
        for t in of.values()
        for test in t
    }
    gone = [
        test
        for test in sorted(named)
        for file, _, name in [test.partition("::")]
        if file not in sources or (name and f"def {name}(" not in sources[file])
    ]
    assert gone == []


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
    "line", ["| `x` | works |", "| `x` | |", "| `x` | **works** | `test_a.py` |"]
)
def test_a_row_without_a_verdict_is_none(line):
    assert rows_of(line) == []


def test_a_parameter_without_a_row_is_found():
    assert "validation_freq" in missing(rows_of(f"## {FIT}\n| `epochs` | **works** |"))[FIT]
