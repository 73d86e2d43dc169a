"""What pip is told to install can be installed, on every page and in every message.

elasticdl is on no package index: it is installed from a path. All else is a package that the locks
know, or one of a few that are named here.
"""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from elasticdl.distribution import (
    DISTRIBUTION,
    WHEEL_PREFIX,
    how_to_get,
    install,
    requirements_of,
    version,
)

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FOLDERS = ("docs", "elasticdl", "deploy", "model_zoo", "examples", "benchmarks", "scripts", "tests")
# A command that installs, up to the end of its words.
COMMAND = re.compile(
    r"(?:pip3?|uv pip|uv tool|pipx) install((?: +(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s`;|&)\"']+))*)"
    r"|uv add((?: +(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s`;|&)\"']+))*)"
)
NAME = re.compile(r"[A-Za-z][\w.-]*")
WITH_VALUE = {
    "-r",
    "--requirement",
    "--target",
    "--constraint",
    "--extra",
    "--out",
    "--python",
    "-d",
}
BESIDE_THE_LOCKS = {
    "jax",
    "mlflow",
    "mlflow-skinny",
    "mlxtend",
    "ray",
    "rocksdict",
    "tensorboard",
    "torch",
    "uv",
    "wandb",
}


def texts():
    yield from ROOT.glob("*.md")
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".md", ".py", ".sh", ".yaml", ".toml") or "Dockerfile" in path.name:
                yield path


def locked():
    return {
        name.lower()
        for lock in (ROOT / "requirements").glob("*.lock")
        for name in re.findall(r"^([\w.-]+)==", lock.read_text(), re.M)
    }


KNOWN = locked() | BESIDE_THE_LOCKS


def words_of(command):
    """Yield what a command installs, without its flags and their values."""
    words = iter(re.findall(r"\"[^\"]*\"|'[^']*'|\S+", command))
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif not word.startswith("-") and word not in ("#", "...", "\\"):
            yield word.strip("'\"")


def problems_of(text):
    """Yield what a text would have installed that no index has, or that is another program."""
    plain = re.sub(r" +#.*", "", text)
    for found in COMMAND.finditer(plain):
        for word in words_of(found[1] or found[2] or ""):
            is_path = "/" in word or word.startswith((".", "$", "{"))
            name = NAME.match(word)
            if not is_path and (name is None or name[0].lower() not in KNOWN):
                yield word


def test_the_name_is_that_of_the_project_and_of_what_is_installed():
    assert PROJECT["name"] == DISTRIBUTION
    assert version() == PROJECT["version"]
    assert DISTRIBUTION.replace("-", "_") + "-" == WHEEL_PREFIX
    assert PROJECT["scripts"] == {"elasticdl": "elasticdl.cli.main:main"}


def test_every_page_and_message_installs_what_can_be_installed():
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
    assert len(calls) >= 4
    assert set(calls) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_the_command_of_an_extra_names_its_packages(extra):
    if extra not in metadata.metadata(DISTRIBUTION).get_all("Provides-Extra"):
        pytest.skip("what is installed is older than pyproject.toml: make build")
    packages = [word.partition(";")[0].strip() for word in PROJECT["optional-dependencies"][extra]]
    assert [word.lower() for word in sorted(requirements_of(extra))] == sorted(
        word.lower() for word in packages
    )
    assert list(problems_of(install(extra))) == []


def test_an_extra_that_is_missing_is_an_error():
    with pytest.raises(KeyError, match="no extra 'none'"):
        install("none")


@pytest.mark.parametrize(
    ("module", "python", "said"),
    [
        ("keras.layers", (3, 13), r"pip install 'tensorflow-cpu>="),
        (
            "tensorflow",
            (3, 14),
            r"no wheel for Python 3\.14: use Python 3\.11 to 3\.13, or .*'torch>=",
        ),
        ("torch", (3, 14), r"pip install .*'torch>="),
        ("my_module", (3, 11), r"^$"),
    ],
)
def test_who_lacks_a_framework_is_told_how_to_get_it(module, python, said):
    assert re.search(said, how_to_get(module, python))


def test_the_page_lists_every_extra():
    page = (ROOT / "docs/install.md").read_text()
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, re.M)
    listed = [name for row in rows for name in re.findall(r"\w+", row)]
    assert sorted(listed) == sorted(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("pip install 'elasticdl[sql]'", ["elasticdl[sql]"]),
        ("pip install 'elasticdl-train[sql]'", ["elasticdl-train[sql]"]),
        ("`pip install elasticdl`, or", ["elasticdl"]),
        ("python -m pip install --quiet elasticdl", ["elasticdl"]),
        ("uv pip install kafka-reader", ["kafka-reader"]),
        ("uv add elasticdl-train", ["elasticdl-train"]),
        ("uv tool install elasticdl", ["elasticdl"]),
        ('pip install "$(ls ./dist/elasticdl_train-*_$(uname -m).whl)[s3]"', []),
        ("pip install ./dist/a.whl[torch]  # or elasticdl", []),
        ("pip install --target a -r b 'pyarrow>=26,<27' && elasticdl train", []),
    ],
)
def test_what_cannot_be_installed_is_found(text, problems):
    assert list(problems_of(text)) == problems
