"""What the documents point to is there."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "model_zoo").rglob("*.md"),
    *(ROOT / "benchmarks").rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"^```.*?^```", re.M | re.S)
FILE = re.compile(r"`((?:elasticdl|tests|benchmarks|scripts)/[\w/.-]+\.(?:py|sh|toml))`")
TEST = re.compile(r"`(?:[\w/]*/)?(test_\w+\.py)(?:::(test_\w+))?`")


def anchors(page):
    """Return what a link may name in a page: its headings, as GitHub writes them, and anchors."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return {*plain, *re.findall(r'<a id="([^"]+)">', text)}


def problems_of_links(page):
    words = CODE.sub("", page.read_text())
    for target, anchor in LINK.findall(words):
        place = page.parent / target if target else page
        if not place.exists():
            yield f"{page.relative_to(ROOT)}: no {target}"
        elif anchor and place.suffix == ".md" and anchor not in anchors(place):
            yield f"{page.relative_to(ROOT)}: {place.name} has no heading #{anchor}"


def problems_of_tests(page, tests):
    for file, name in TEST.findall(page.read_text()):
        if file not in tests:
            yield f"{page.relative_to(ROOT)}: no {file}"
        elif name and f"def {name}(" not in tests[file]:
            yield f"{page.relative_to(ROOT)}: {file} has no {name}"


def test_links_lead_to_pages_and_headings():
    assert [problem for page in PAGES for problem in problems_of_links(page)] == []


def test_tests_that_are_named_exist():
    tests = {}
    for folder in ("tests", "model_zoo"):
        for path in (ROOT / folder).rglob("test_*.py"):
            tests[path.name] = tests.get(path.name, "") + path.read_text()
    assert [problem for page in PAGES for problem in problems_of_tests(page, tests)] == []


SOURCES = ("elasticdl", "crates", "scripts", "benchmarks", "model_zoo", "tests", "examples")
NAMED = re.compile(r"\bdocs/[\w/-]+\.md")


def test_pages_that_the_program_names_exist():
    files = [
        path
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".rs", ".ipynb")
        and path != ROOT / "tests/unit/scripts/test_site.py"
    ]
    named = {name for path in files for name in NAMED.findall(path.read_text())}
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_a_broken_link_and_a_test_that_is_gone_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[a](none.md) [b](#a-heading) [c](#other) `test_a.py::test_b`")
    assert list(problems_of_links(page)) == [
        "page.md: no none.md",
        "page.md: page.md has no heading #other",
    ]
    assert list(problems_of_tests(page, {"test_a.py": "def test_c():"})) == [
        "page.md: test_a.py has no test_b"
    ]


CHINESE = [page for page in PAGES if page.stem.endswith("_cn")]
COMMENT = re.compile(r"(?:^|[ \t]+)#[ \t].*$", re.M)
SPAN = re.compile(r"`([^`]+)`")
HAN = "[\u4e00-\u9fff]"


def code_of(text):
    """Return the blocks of a page's code and output, in order, without comments."""
    return [COMMENT.sub("", block) for block in CODE.findall(text)]


def spans_of(text):
    """Return the words of a page that are set as code, wherever its lines break."""
    return {" ".join(span.split()) for span in SPAN.findall(CODE.sub("", text))}


def links_of(page):
    """Return where a page leads to: in Chinese where there is such a page."""
    links = set()
    for target, anchor in LINK.findall(CODE.sub("", page.read_text())):
        chinese = re.sub(r"(?<!_cn)\.md$", "_cn.md", target)
        there = chinese.endswith("_cn.md") and (page.parent / chinese).exists()
        links.add((chinese, "") if there else (target, anchor))  # headings are other words
    return links


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_chinese_page_says_what_its_english_one_says(page):
    other = page.with_name(page.name.replace("_cn.md", ".md"))
    chinese, english = page.read_text(), other.read_text()

    assert code_of(chinese) == code_of(english)
    assert any("elasticdl train" in block for block in code_of(english))
    assert spans_of(english) - spans_of(chinese) == set()
    assert english.startswith(f"English | [简体中文]({page.name})\n")
    assert chinese.startswith(f"[English]({other.name}) | 简体中文\n")
    assert links_of(other) - links_of(page) == set()
    below = {target for target, _ in LINK.findall(CODE.sub("", chinese.split("\n", 1)[1]))}
    assert below - {target for target, _ in links_of(page)} == set(), "that page is in Chinese too"
    # A browser shows a space where the line breaks.
    assert re.findall(f"{HAN}\n{HAN}.*", CODE.sub("", chinese)) == []


def test_the_readme_is_one_screen_and_a_table():
    for page in ("README.md", "README_cn.md"):
        assert len((ROOT / page).read_text().splitlines()) <= 120


def test_code_and_links_that_a_chinese_page_lacks_are_seen(tmp_path):
    page = "```\n$ elasticdl train \\\n    --a=1\nmake x  # to do it\n# and\n```\n`make\ny`"
    assert code_of(page) == ["```\n$ elasticdl train \\\n    --a=1\nmake x\n\n```"]
    assert spans_of(page) == {"make y"}
    for name in ("a.md", "b.md", "b_cn.md"):
        (tmp_path / name).write_text("[a](a.md#a) [b](b.md#b) [b](b_cn.md#c)")
    assert links_of(tmp_path / "a.md") == {("a.md", "a"), ("b_cn.md", "")}


def test_the_table_of_rooms_is_the_one_that_the_linter_holds():
    text = (ROOT / "docs/architecture.md").read_text()
    table = re.search(r"^\| rooms \|.*?\n\n", text, re.M | re.S)
    assert table is not None
    rows = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table[0].split("\n")[2:-2]]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    assert [set(row) for row in rows] == [set(layer.split(" | ")) for layer in layers]


def test_the_files_that_pages_name_are_there():
    named = {file for page in PAGES for file in FILE.findall(page.read_text())}
    assert len(named) > 100
    assert [file for file in sorted(named) if not (ROOT / file).exists()] == []


def test_the_files_to_read_first_are_there():
    text = (ROOT / "docs/architecture.md").read_text()
    files = re.findall(r"^\| `([\w/-]+\.(?:py|rs))` \|", text, re.M)
    assert len(files) == 10
    assert [
        file for file in files if not any((ROOT / at / file).exists() for at in (".", "elasticdl"))
    ] == []


@pytest.mark.parametrize(
    ("row", "file", "number"),
    [
        ("checkpoint", "elasticdl/checkpoints/writing.py", r"_FORMAT = (\d)"),
        ("continuous export", "elasticdl/packages/serving/chain.py", r"FORMAT = (\d)"),
        ("journal", "elasticdl/master/durable.py", r"_FORMAT = (\d)"),
        ("record files", "crates/edl-recordio/src/format.rs", r"VERSION: u16 = (\d)"),
        ("event log", "elasticdl/observe/kind.py", r"SCHEMA = (\d)"),
        ("statistics", "elasticdl/packages/data_tools/statistics.py", r"VERSION = (\d)"),
    ],
)
def test_the_page_of_releases_has_the_numbers_of_formats(row, file, number):
    page = (ROOT / "docs/release.md").read_text()
    told = re.search(rf"^\| {row} \| [^|]* \| (\d) \|", page, re.M)
    found = re.search(rf"^(?:pub const )?{number}", (ROOT / file).read_text(), re.M)
    assert told is not None
    assert found is not None
    assert told[1] == found[1]


def test_a_user_reads_the_release_notes():
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 80
