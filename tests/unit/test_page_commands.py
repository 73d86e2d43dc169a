"""Every command of elasticdl on every page is one that there is, with flags that it has."""

import re
import shlex

import click
import pytest

from elasticdl.cli.main import cli
from tests.elastic.page_scripts import TREATMENTS, commands_of, commands_to_run
from tests.unit.test_docs import PAGES, ROOT

BLOCK = re.compile(r"^```(?:sh|console|bash)?\n(.*?)^```|((?:^    \S.*\n)+)", re.M | re.S)
INLINE = re.compile(r"`(elasticdl [^`\n]+)`")
WORD_OF_A_COMMAND = re.compile(r"[a-z]+")
OF_ELASTICDL_0 = {"clean"}  # which docs/migrating.md says is gone


def lines_of(text):
    """Yield the command lines of a page, each as one line, without what they print."""
    for fenced, indented in BLOCK.findall(text):
        joined = re.sub(r"\s*\\\n\s*", " ", fenced or indented)
        for line in joined.splitlines():
            line = re.sub(r"^(?:\$ |[A-Z_]+=\S+ )*", "", line.strip())
            if line.startswith("elasticdl "):
                yield line
    yield from INLINE.findall(text)


def problem_of(line):
    """Return what is wrong with a command line; None if there are such a command and such flags."""
    line = re.split(r" (?:\||&&|&$|>|2>|#)", line)[0]
    try:
        words = shlex.split(line.replace("\\|", "|").replace("...", ""))
    except ValueError:
        return None  # a part of a line, in the middle of a sentence
    command, words = cli, words[1:]
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        names = words[0].split("|")
        if not all(WORD_OF_A_COMMAND.fullmatch(name) for name in names):
            return None  # a placeholder
        context = click.Context(command)
        known = {*command.list_commands(context), *OF_ELASTICDL_0}
        missing = [name for name in names if name not in known]
        if missing:
            return f"no command {missing[0]}"
        if OF_ELASTICDL_0 & set(names):
            return None
        command, words = command.get_command(context, names[0]), words[1:]
        if len(names) > 1:
            return None
    known = {
        name.lstrip("-")
        for param in command.params
        for name in (*param.opts, *param.secondary_opts)
    }
    for word in words:
        if word == "--":
            break
        name = word.partition("=")[0].lstrip("-").replace("-", "_")
        if re.match(r"--\w", word) and name not in known | {"help", "version"}:
            return f"{line.split(' --')[0]}: no flag --{name}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist_and_have_these_flags(page):
    problems = [problem for line in lines_of(page.read_text()) if (problem := problem_of(line))]
    assert problems == []


TARGETS = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M))
MADE = re.compile(r"(?:^(?:\$ )?|`)make ((?:[a-z][\w-]* ?)+)", re.M)
RUN = re.compile(r"(?:^(?:\$ )?(?:\S+=\S+ )*|`)(?:\S*/)?python (?:-m ([\w.]+)|([\w/]+\.py))", re.M)
OF_OTHERS = {"venv", "pip", "http.server", "build"}  # modules that are not of this tree
FROM_HERE = (ROOT, ROOT / "model_zoo")


def things_that_are_missing(text):
    """Yield the targets of make, and the modules and files of Python, that a page runs in vain."""
    for words in MADE.findall(text):
        yield from (f"make {word}" for word in words.split() if word not in TARGETS)
    for module, file in RUN.findall(text):
        name = module.replace(".", "/") if module else file.removesuffix(".py")
        found = any((at / f"{name}.py").exists() or (at / name).is_dir() for at in FROM_HERE)
        if not found and module not in OF_OTHERS:
            yield f"python {module or file}"


# The changelog names what there was at the time.
OF_TODAY = [page for page in PAGES if page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", OF_TODAY, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_makes_and_runs_is_there(page):
    assert sorted(things_that_are_missing(page.read_text())) == []


def test_a_target_and_a_module_that_are_missing_are_found():
    text = "```\nmake demo tea\npython -m clicks.brew --hot\n```\nand `python scripts/none.py`"
    assert sorted(things_that_are_missing(text)) == [
        "make tea",
        "python clicks.brew",
        "python scripts/none.py",
    ]


def test_most_pages_have_commands():
    assert sum(len(list(lines_of(page.read_text()))) for page in PAGES) > 200


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```\n$ elasticdl trian --num_epochs=3\n```\n", "no command trian"),
        (
            "```\nelasticdl train \\\n    --num_epoch=3 ...\n```\n",
            "elasticdl train: no flag --num_epoch",
        ),
        ("say `elasticdl data inspekt FILE`", "no command inspekt"),
        ("say `elasticdl scale JOB --workers=3`", None),
        ("```\nelasticdl run a.py --num_epochs=2 -- --units=3  # all\n```\n", None),
    ],
)
def test_a_command_that_there_is_not_is_found(text, problem):
    (line,) = lines_of(text)
    assert problem_of(line) == problem


def test_each_command_is_run_by_a_test_or_has_a_reason_why_not():
    pages = {str(page.relative_to(ROOT)): commands_of(page.read_text()) for page in PAGES}
    with_commands = {page for page, commands in pages.items() if commands}
    in_chinese = {page for page in with_commands if page.endswith("_cn.md")}
    assert with_commands - in_chinese == set(TREATMENTS)
    for page, treatment in TREATMENTS.items():
        nobody_runs = commands_to_run(page) if treatment.run_by is None else []
        assert nobody_runs == [], page
        if treatment.run_by is not None:
            file, test = treatment.run_by.split("::")
            assert f"def {test}(" in (ROOT / file).read_text()
        unused = [
            start
            for start in treatment.left_out
            if not any(re.match(start, command) for command in pages[page])
        ]
        assert unused == [], page


def test_the_commands_of_a_page_are_those_that_a_person_would_copy():
    text = (
        "```\n$ elasticdl train --a=1 \\\n    --b=2\nfinished\n$ ls model\n```\n"
        "```python\nelasticdl.train()\n```\nor\n\n    make demo\n        it prints\n\n"
        "```sh\nelasticdl status JOB\nelasticdl train ... --c=3\nmake wheel  # a wheel\n```\n"
    )
    assert commands_of(text) == [
        "elasticdl train --a=1 --b=2",
        "ls model",
        "make wheel  # a wheel",
        "make demo",
    ]
