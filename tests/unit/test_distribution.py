"""What pip is told to install is this program, on every page and in every message."""

import re
import tomllib
from pathlib import Path

from elasticdl.distribution import DISTRIBUTION, WHEEL_PREFIX, install, version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("docs", "elasticdl", "deploy", "model_zoo", "examples", "benchmarks", "scripts", "tests")
WITH_EXTRAS = re.compile(r"([\w-]*elasticdl[\w-]*)\[([a-z][a-z0-9,]*)\]")
INSTALLED = re.compile(
    r"pip3? install(?: [^`;:&|(\n]*?)? ['\"]?(elasticdl[\w-]*)(?=['\"\[ `)\n=]|$)", re.M
)


def texts():
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".md", ".py", ".sh", ".yaml", ".toml") or "Dockerfile" in path.name:
                yield path


def problems_of(text):
    """Yield what a text would have pip install that is another program, or has no such extra."""
    for name, extras in WITH_EXTRAS.findall(text):
        unknown = set(extras.split(",")) - set(PROJECT["optional-dependencies"])
        if name != DISTRIBUTION:
            yield f"{name}[{extras}]"
        elif unknown:
            yield f"no extra {', '.join(sorted(unknown))}"
    for name in INSTALLED.findall(text):
        if name != DISTRIBUTION:
            yield f"pip install {name}"


def test_the_name_is_that_of_the_project_and_of_what_is_installed():
    assert PROJECT["name"] == DISTRIBUTION
    assert version() == PROJECT["version"]
    assert DISTRIBUTION.replace("-", "_") + "-" == WHEEL_PREFIX
    assert PROJECT["scripts"] == {"elasticdl": "elasticdl.cli.main:main"}


def test_no_page_and_no_message_has_pip_install_another_program():
    found = {
        str(path.relative_to(ROOT)): problems
        for path in texts()
        if path != Path(__file__) and (problems := list(problems_of(path.read_text())))
    }
    assert found == {}


def test_messages_name_extras_that_there_are():
    calls = [
        extra
        for path in (ROOT / "elasticdl").rglob("*.py")
        for extra in re.findall(r"\binstall\(['\"](\w+)['\"]\)", path.read_text())
    ]
    assert len(calls) >= 12
    assert set(calls) <= set(PROJECT["optional-dependencies"])
    assert install("sql") == "pip install 'elasticdl-train[sql]'"


def test_another_name_and_an_extra_that_is_missing_are_found():
    assert list(problems_of("pip install 'elasticdl[sql]'")) == [
        "elasticdl[sql]",
        "pip install elasticdl",
    ]
    assert list(problems_of("python -m pip install --quiet elasticdl")) == ["pip install elasticdl"]
    assert list(problems_of("`pip install elasticdl`")) == ["pip install elasticdl"]
    assert list(problems_of("pip install 'elasticdl-train[none]'")) == ["no extra none"]
    assert list(problems_of("pip install 'elasticdl-train[s3,sql]'; elasticdl train")) == []
