"""What the documents point to is there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "model_zoo").rglob("*.md"),
    *(ROOT / "benchmarks").rglob("*.md"),
]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"^```.*?^```", re.M | re.S)
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


@pytest.mark.parametrize("words", [[], ["train"]], ids=["elasticdl", "elasticdl train"])
def test_the_readme_shows_the_help_as_it_is_printed(words):
    done = subprocess.run(
        [sys.executable, "-c", "from elasticdl.cli.main import main; main()", *words, "--help"],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    panel = "Evaluation" if words else "Commands"
    (shown,) = re.findall(rf"╭─ {panel} .*?╰─+╯", (ROOT / "README.md").read_text(), re.S)
    assert shown in printed
