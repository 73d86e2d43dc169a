"""The page on PyTorch says of each row whether it works (`shown_by.toml` has its tests)."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


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


def test_each_row_says_whether_it_works():
    found = list(rows())
    assert len(found) > 25
    for row in found:
        assert re.search(r"\*\*(works|differs|refused)\*\*|here alone", row), row
