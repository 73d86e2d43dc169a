"""The page on PyTorch names, in each row, tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def rows():
    """The rows of the tables that say what works here: those with a column of that name."""
    header = ""
    for line in (ROOT / "docs" / "torch.md").read_text().splitlines():
        if not line.startswith("|"):
            header = ""
        elif not header:
            header = line
        elif "| here |" in header and not line.startswith("|-"):
            yield line


def test_each_row_names_a_test_that_exists():
    files = {path.name: path.read_text() for path in ROOT.glob("tests/**/test_*.py")}
    found = list(rows())
    assert len(found) > 25
    for row in found:
        tests = TEST.findall(row)
        assert tests, row
        for file, test in tests:
            assert f"\ndef {test}(" in files[file], (file, test)


def test_each_row_says_whether_it_works():
    for row in rows():
        assert re.search(r"\*\*(works|differs|refused)\*\*|here alone", row), row
