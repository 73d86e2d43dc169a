"""How the site of the pages reads them: flags, docstrings and links."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

ROOT = Path(__file__).resolve().parents[3]
MENU = ROOT / "docs/README.md"


@pytest.fixture(scope="module")
def site():
    """The modules of docs/site, which are no package."""
    folder = str(ROOT / "docs/site")
    sys.path.insert(0, folder)
    import check
    import links
    import reference

    sys.path.remove(folder)
    return SimpleNamespace(check=check, links=links, reference=reference)


def test_every_flag_and_command_is_in_the_reference(site, tmp_path):
    from elasticdl.cli.flags import flags
    from elasticdl.cli.main import cli

    site.reference.write_pages(tmp_path / "generated")
    text = (tmp_path / "generated/commands.md").read_text()
    arguments = {"script", "script_arguments"}  # of `elasticdl run`, which are no flags
    named = {flag.name for flag in flags() if f"`--{flag.name} " in text}
    assert {flag.name for flag in flags()} - named == arguments
    names = cli.list_commands(click.Context(cli))
    assert [name for name in names if f"\n## elasticdl {name}" not in text] == []
    assert "\\[default: 64\\]" in text


def test_fields_and_code_of_a_docstring_are_marked(site):
    lines = [
        "Runs.",
        "",
        "    run()",
        "",
        "ids: The ids,",
        "    any shape.",
        "rows: Rows.",
        "More.",
    ]
    site.reference.read_docstring(None, "class", "a", None, {}, lines)
    assert lines == [
        *("Runs.", "", "::", "", "    run()", ""),
        *(":ids:  The ids,", "    any shape.", ":rows:  Rows.", "", "More."),
    ]


def test_a_link_to_a_file_that_is_no_page_becomes_its_path(site, tmp_path):
    (tmp_path / "docs").mkdir()
    for name in ("docs/a.md", "docs/b.md", "tool.py"):
        (tmp_path / name).write_text("")
    env = SimpleNamespace(found_docs={"docs/a", "docs/b"}, doc2path=lambda name, base: f"{name}.md")
    config = SimpleNamespace(root_doc="docs/b")
    app = SimpleNamespace(srcdir=str(tmp_path), env=env, config=config)
    source = ['[b](b.md) [tool](../tool.py) `[x](../tool.py)` [gone](c.md)\n<a id="here"></a>\n']
    site.links.rewrite(app, "docs/a", source)
    assert source == ["[b](b.md) tool (`tool.py`) `[x](../tool.py)` [gone](c.md)\n\n(here)=\n"]

    first = ["# Pages\n## Begin\n- [A](a.md): one\n"]
    site.links.rewrite(app, "docs/b", first)
    assert ":caption: Begin\n:hidden:\n:glob:\n\nA <a>\n" in first[0]


def test_a_link_to_nothing_is_found(site, tmp_path, capsys):
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="b.html#here">b</a>')
    (tmp_path / "b.html").write_text('<a id="here" href="a.html#top">a</a><a href="//else/x">x</a>')
    assert site.check.main(tmp_path) == 0
    assert capsys.readouterr().out == "2 pages, 2 links within, 1 to others\n"

    (tmp_path / "a.html").write_text('<a href="b.html#gone">b</a><img src="c.png">')
    assert site.check.main(tmp_path) == 1
    assert capsys.readouterr().out.count("no such") == 3


def test_every_page_is_in_the_menu(site):
    listed = [entry for _, entries in site.links.menu(MENU.read_text()) for entry in entries]
    pages = {
        (MENU.parent / f"{page}.md").resolve()
        for page in re.findall(r"<(\S+)>$", "\n".join(listed), re.M)
    }
    examples = {ROOT / "examples/README.md"}  # which leads to the others
    assert {*(ROOT / "docs").rglob("*.md"), *examples} - pages == {
        MENU,
        *(ROOT / "docs/site/generated").glob("*.md"),
    }
