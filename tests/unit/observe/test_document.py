import dataclasses
import re
from pathlib import Path

import pytest

import elasticdl
from elasticdl.job import Label
from elasticdl.observe.kind import Kind, fields_of
from elasticdl.observe.kinds import all_kinds
from scripts.event_kinds import rewritten

PACKAGE = Path(elasticdl.__file__).parent
PAGE = PACKAGE.parent / "docs" / "events.md"


def test_the_page_has_the_schema_of_the_code():
    page = PAGE.read_text()
    assert page == rewritten(page), "run: python -m scripts.event_kinds docs/events.md"


def test_the_page_explains_each_label():
    page = PAGE.read_text()
    assert [label for label in Label if f"\n| {label} |" not in page] == []


@pytest.mark.parametrize("kind", all_kinds().values(), ids=list(all_kinds()))
def test_a_kind_says_what_its_fields_mean_and_hides_none_that_every_line_has(kind):
    fields = fields_of(kind)
    assert all(field.means for field in fields)
    taken = {"time", "role", "index", "event", "text"}
    assert not taken & {field.name for field in fields}
    assert dataclasses.is_dataclass(kind)


def test_each_kind_has_a_name_of_its_own():
    assert len(all_kinds()) == len(Kind.__subclasses__())


def test_each_kind_is_written_somewhere():
    sources = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    made = set(re.findall(r"(?<!class )\b([A-Z]\w+)\(", sources))
    assert {kind.__name__ for kind in all_kinds().values()} <= made
