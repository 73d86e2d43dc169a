"""What stands in the README of the benchmarks is what was measured."""

import pytest

from benchmarks.readme import FOLDER, PAGE, README, figure, read, replaced, results, summary, times


@pytest.fixture(scope="module")
def documents():
    return read(FOLDER / "results")


@pytest.mark.parametrize(("page", "made"), [(README, results), (PAGE, summary)])
def test_both_tables_are_those_of_the_result_files(documents, page, made):
    text = page.read_text()
    assert text == replaced(text, made(documents)), "python -m benchmarks.readme"


def test_each_program_stands_in_the_readme():
    programs = {
        path.stem
        for path in FOLDER.glob("*.py")
        if path.stem not in ("readme", "member_server", "tls")
        and '\nif __name__ == "__main__":' in path.read_text()
    }
    named = {f"`{program}`" for program in programs}
    assert named <= {line.split(" | ")[0][2:] for line in README.read_text().splitlines()}


def test_the_page_begins_with_ten_lines_of_which_some_are_lost(documents):
    lines = summary(documents).splitlines()[2:]
    ratios = [float(line.split("**")[1].rstrip("x")) for line in lines]
    assert len(ratios) == 10
    assert 0 < sum(ratio < 1 for ratio in ratios) < 10


def test_text_without_marks_is_refused():
    with pytest.raises(ValueError, match="expected <!-- results: begin -->"):
        replaced("nothing", "made")


def test_figures_have_three_digits():
    assert [figure(x) for x in (0.331, 12.34, 1234.5)] == ["0.331", "12.3", "1,234"]
    assert [times(x) for x in (0.5, 2.34, 97.4)] == ["0.50x", "2.3x", "97x"]
