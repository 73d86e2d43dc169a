"""Which tests a change reaches."""

import pytest

from scripts.changed import ROOT, choose, crates_of

TEXTS = {
    "elasticdl/__init__.py": "from elasticdl.job import Task",
    "elasticdl/job.py": "",
    "elasticdl/_core.pyi": "",
    "elasticdl/data/kafka/reader.py": "from ...job import Task",
    "elasticdl/data/kafka/offsets.py": "def f():\n    from elasticdl.data.kafka import reader",
    "elasticdl/cli/main.py": "import elasticdl.data.kafka.offsets",
    "tests/elastic/test_kafka_job.py": "import elasticdl.cli.main",
    "tests/elastic/test_stop_job.py": "import elasticdl.cli.main",
    "tests/unit/cli/test_flags.py": "import elasticdl.cli.main",
    "tests/unit/data/conftest.py": "from elasticdl.data.kafka.offsets import f",
    "tests/unit/data/test_lines.py": "",
    "tests/unit/master/test_ledger.py": "from elasticdl.job import Task",
    "tests/unit/ps/test_keras_rows.py": "from elasticdl._core import Store",
    "tests/unit/scripts/test_house.py": "",
    "tests/unit/test_docs.py": "PAGES = ROOT.rglob('*.md'); LIST = 'pyproject.toml'",
}
CRATES = {"edl-store": set(), "edl-ps": {"edl-store"}, "edl-python": {"edl-store", "edl-ps"}}


def chosen(*changed):
    return choose(changed, TEXTS, CRATES)


def test_the_core_runs_each_time():
    assert chosen().why == {"tests/unit/master/test_ledger.py": "it is of the core"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            "elasticdl/data/kafka/reader.py",
            {
                "tests/elastic/test_kafka_job.py": "it is of kafka",
                "tests/unit/cli/test_flags.py": "cli imports what changed",
                "tests/unit/data/test_lines.py": "it imports elasticdl/data/kafka/reader.py",
            },
        ),
        ("scripts/walk.py", {"tests/unit/scripts/test_house.py": "it is of scripts"}),
        ("tests/elastic/test_stop_job.py", {"tests/elastic/test_stop_job.py": "it changed"}),
        ("docs/data.md", {"tests/unit/test_docs.py": "it reads pages"}),
        ("pyproject.toml", {"tests/unit/test_docs.py": "it names pyproject.toml"}),
        (
            "crates/edl-ps/src/lib.rs",
            {"tests/unit/ps/test_keras_rows.py": "it imports the extension"},
        ),
    ],
)
def test_what_a_change_reaches_is_chosen_with_the_reason(changed, expected):
    found = chosen(changed).why
    assert found == {"tests/unit/master/test_ledger.py": "it is of the core", **expected}


def test_a_changed_crate_is_tested_with_those_that_depend_on_it():
    assert chosen("crates/edl-ps/src/lib.rs").crates == {"edl-ps", "edl-python"}
    assert chosen("crates/edl-store/src/lib.rs").crates == set(CRATES)


def test_crates_are_those_of_the_workspace():
    crates = crates_of(ROOT)
    assert not crates or "edl-store" in crates["edl-python"]
