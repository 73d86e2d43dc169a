"""What stands in the README of the benchmarks is what was measured."""

from xml.etree import ElementTree

import pytest

from benchmarks.readme import FOLDER, PICTURE, figure, made, picture, read, replaced, results, times
from benchmarks.summary import PAGE, summary

DOCUMENT = {
    "date": "2026-01-31T00:00:00",
    "machine": {"cores": 2, "load_average": [0.5]},
    "notes": {},
}


def row(ours, peer=None, is_higher_better=True):
    pick = max if is_higher_better else min
    runs = {"ours": ours} if peer is None else {"ours": ours, "peer": peer}
    best = {side: pick(values) for side, values in runs.items()}
    ratio = None
    if peer is not None:
        ratio = best["ours"] / best["peer"] if is_higher_better else best["peer"] / best["ours"]
    return {
        "what": "this",
        "unit": "unit",
        "ratio": ratio,
        "best": best,
        "median": {side: sorted(values)[len(values) // 2] for side, values in runs.items()},
        "runs": runs,
    }


def line_of(made):
    text = results({"other": {**DOCUMENT, "rows": [made]}})
    return next(line for line in text.splitlines() if line.startswith("| this"))


def test_readme_and_picture_are_those_of_the_result_files():
    documents = read(FOLDER / "results")
    text = (FOLDER / "README.md").read_text()
    assert text == replaced(text, made(FOLDER / "results")), "python -m benchmarks.readme"
    assert (FOLDER / PICTURE).read_text() == picture(documents), "python -m benchmarks.readme"
    page = PAGE.read_text()
    assert page == replaced(page, summary(documents)), "python -m benchmarks.readme"


def test_the_page_begins_with_ten_lines_of_which_some_are_lost():
    lines = summary(read(FOLDER / "results")).splitlines()[2:]
    ratios = [float(line.split("**")[1].rstrip("x")) for line in lines]
    assert len(ratios) == 10
    assert 0 < sum(ratio < 1 for ratio in ratios) < 10


def test_medians_stand_beside_the_best():
    assert line_of(row([10, 30, 20], [5, 6, 4])) == (
        "| this | 30 (20) | 6 (5) | 5.0x (4.0x) | unit | 3 |"
    )


def test_the_worst_stands_beside_a_pause():
    line = line_of(row([0.33, 7.2, 1.1], is_higher_better=False))
    assert line == "| this | 0.33 (1.1), worst 7.2 |  |  | unit | 3 |"


def test_a_row_that_misses_its_aim_stays():
    assert "0.50x (0.50x)" in line_of(row([1, 1, 1], [2, 2, 2]))


def test_whole_jobs_come_first():
    text = results(read(FOLDER / "results"))
    assert (
        text.index("### Whole jobs") < text.index(PICTURE) < text.index("### The parameter store")
    )


def test_the_picture_is_xml_with_a_bar_for_each_stage():
    stages = {"elapsed": 10.0, "feed": 4.0, "compute": 9.0, "compute wait": 1.0}
    document = {
        **DOCUMENT,
        "rows": [],
        "notes": {"microseconds a record by stage": {"1 + 1": stages}},
    }
    root = ElementTree.fromstring(picture({"flights": document}))
    hints = [element.text for element in root.iter() if element.tag.endswith("title")]
    assert "feed: 4.0 us" in hints
    assert "compute: 9.0 us" in hints


def test_text_without_marks_is_refused():
    with pytest.raises(ValueError, match="expected <!-- results: begin -->"):
        replaced("nothing", "made")


def test_figures_have_three_digits():
    assert [figure(x) for x in (0.331, 12.34, 1234.5)] == ["0.331", "12.3", "1,234"]
    assert [times(x) for x in (0.5, 2.34, 97.4)] == ["0.50x", "2.3x", "97x"]
