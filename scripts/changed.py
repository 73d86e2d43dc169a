"""Chooses the tests that a change reaches, says what it chose, and runs them: `make test-changed`.

    python -m scripts.changed [--base=main] [--run [FLAGS OF PYTEST]]

A test file is chosen if

- it is in the core (`CORE`): these tests run each time;
- it changed, or imports a changed file over any number of files. Imports inside functions count.
  Files that import everything (`ENTRANCES`) do not pass a change on, but the tests of their room
  run;
- its name or its folder has the name of a changed folder, such as `test_kafka_job.py`. The
  processes of a job import files that the test itself does not import;
- it names a changed file that is no code, such as a page or a list of packages.

A changed crate is tested with the crates that depend on it. If the extension is one of these
crates, the tests that import the extension directly run too. `make test` runs all tests.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.house import imported

ROOT = Path(__file__).resolve().parents[1]
CODE = ("elasticdl", "tests", "scripts", "benchmarks", "model_zoo", "examples")
CORE = tuple(
    f"tests/unit/{room}/"
    for room in ("checkpoints", "master", "ps", "rpc", "runtime", "settings", "state", "worker")
)
EXTENSION = "elasticdl/_core.pyi"
ENTRANCES = re.compile(r"elasticdl/(cli/.*|\w+/__main__|controller|__init__)\.py")
OF_PAGES = re.compile(r"""["'][^"'\s]*\.md["']""")
OF_A_FRAMEWORK = re.compile(r"test_(keras|torch|jax)_")


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen tests as paths from the root. `why` has the first reason for each test file."""

    why: Mapping[str, str]
    crates: frozenset[str]


def main() -> int:
    """Choose the tests, print the choice, and run them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", help="what the change is since (main, or main's upstream)")
    parser.add_argument("--run", nargs=argparse.REMAINDER, help="run them, with flags of pytest")
    words = parser.parse_args()
    base = words.base or base_of(ROOT)
    changed = changed_files(ROOT, base)
    texts = {path: (ROOT / path).read_text() for path in python_files(ROOT)}
    choice = choose(changed, texts, crates_of(ROOT))
    tell(base, changed, choice, sum(map(is_test, texts)))
    if words.run is None:
        return 0
    return run(choice, words.run)


def base_of(root: Path) -> str:
    """Return the base of a change: main, or on main itself its upstream branch."""
    branch = _git(root, "rev-parse", "--abbrev-ref", "HEAD")[0]
    if branch != "main":
        return "main"
    try:
        return _git(root, "rev-parse", "--abbrev-ref", "main@{upstream}")[0]
    except subprocess.CalledProcessError:
        return "main"


def changed_files(root: Path, base: str) -> list[str]:
    """Return the files that differ from the point where the branch left `base`, and new files."""
    start = _git(root, "merge-base", base, "HEAD")[0]
    new = _git(root, "ls-files", "--others", "--exclude-standard")
    return sorted({*_git(root, "diff", "--name-only", start), *new})


def python_files(root: Path) -> list[str]:
    """Return the Python files that git knows or would add."""
    places = (*CODE, "conftest.py")
    found = _git(root, "ls-files", "--cached", "--others", "--exclude-standard", "--", *places)
    return [path for path in found if path.endswith(".py") and (root / path).exists()]


def choose(
    changed: Iterable[str], texts: Mapping[str, str], crates: Mapping[str, set[str]]
) -> Choice:
    """Return the tests that a change reaches.

    Args:
        changed: The paths that changed.
        texts: The text of each Python file.
        crates: For each crate the crates that it depends on.
    """
    changed = set(changed)
    tests = [path for path in texts if is_test(path)]
    why: dict[str, str] = {}
    touched = {path.split("/")[1] for path in changed if path.startswith("crates/")}
    compiled = {crate for crate in crates if touched & {crate, *crates[crate]}}
    imports = imports_of(texts)
    met = reached(changed, imports)
    for path, source in met.items():
        if is_test(path):
            why.setdefault(path, "it changed" if path == source else f"it imports {source}")
    rooms = {f"tests/unit/{path.split('/')[1]}/" for path in met if ENTRANCES.fullmatch(path)}
    folders = set().union(*map(_folders, changed)) - {"packages"}
    others = {Path(path).name for path in changed if not path.endswith((".py", ".rs"))}
    for test in tests:
        if words := folders & {*Path(test).stem.split("_"), *_folders(test)}:
            why.setdefault(test, f"it is of {min(words)}")
        if names := [name for name in others if name in texts[test]]:
            why.setdefault(test, f"it names {min(names)}")
        if any(path.endswith(".md") for path in changed) and OF_PAGES.search(texts[test]):
            why.setdefault(test, "it reads pages")
        if "edl-python" in compiled and EXTENSION in imports[test]:
            why.setdefault(test, "it imports the extension")
        if test.startswith(tuple(rooms)):
            why.setdefault(test, f"{test.split('/')[2]} imports what changed")
        if test.startswith(CORE) and not OF_A_FRAMEWORK.search(test):
            why.setdefault(test, "it is of the core")
    return Choice(dict(sorted(why.items())), frozenset(compiled))


def imports_of(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Return for each file the files that it imports. A test imports each `conftest.py` above."""
    by_module = {_module(path): path for path in texts} | {"elasticdl._core": EXTENSION}
    found: dict[str, set[str]] = {}
    for path, text in texts.items():
        tree = ast.parse(text)
        names = imported(tree, _module(path), Path(path))
        beside = {name: f"{Path(path).parent.as_posix()}/{name}.py" for name in names}
        found[path] = {by_module[name] for name in names if name in by_module}
        found[path] |= {place for place in beside.values() if place in texts}
        if path.startswith(("tests/", "model_zoo/")):
            parents = (folder.as_posix() for folder in Path(path).parents)
            conftests = {f"{folder}/conftest.py".removeprefix("./") for folder in parents}
            found[path] |= conftests & set(texts)
    return found


def reached(sources: Iterable[str], imports: Mapping[str, set[str]]) -> dict[str, str]:
    """Return the sources and all files that import one, each with its source.

    A file that imports an entrance is reached only if the entrance itself is a source.
    """
    users: defaultdict[str, list[str]] = defaultdict(list)
    for path, used in imports.items():
        for other in used:
            users[other].append(path)
    found = {source: source for source in sorted(sources)}
    waiting = list(found)
    while waiting:
        path = waiting.pop()
        if ENTRANCES.fullmatch(path) and path != found[path]:
            continue
        for user in users[path]:
            if user not in found:
                found[user] = found[path]
                waiting.append(user)
    return found


def crates_of(root: Path) -> dict[str, set[str]]:
    """Return for each crate of the workspace all crates of it that the crate depends on."""
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version=1"]
    try:
        done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        return {}
    packages = json.loads(done.stdout)["packages"]
    names = {package["name"] for package in packages}
    direct = {p["name"]: {d["name"] for d in p["dependencies"]} & names for p in packages}
    for _ in names:
        direct = {name: needed.union(*map(direct.get, needed)) for name, needed in direct.items()}
    return direct


def is_test(path: str) -> bool:
    """Return whether pytest collects a file."""
    return path.startswith(("tests/", "model_zoo/")) and Path(path).name.startswith("test_")


def tell(base: str, changed: list[str], choice: Choice, num_tests: int) -> None:
    """Print the changes, the chosen tests and the reasons."""
    rooms = sorted({"/".join(path.split("/")[:-1][:3]) or path for path in changed})
    print(f"{len(changed)} files changed since {base}: {', '.join(rooms) or 'nothing'}")
    if choice.crates:
        print(f"crates: {', '.join(sorted(choice.crates))}")
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for test, reason in choice.why.items():
        reasons[reason].append(test)
    print(f"{len(choice.why)} of {num_tests} test files:")
    for reason, tests in sorted(reasons.items(), key=lambda each: -len(each[1])):
        shown = ", ".join(tests[:3]) + (", ..." if len(tests) > 3 else "")
        print(f"  {len(tests)}, because {reason}: {shown}")
    sys.stdout.flush()


def run(choice: Choice, flags: list[str]) -> int:
    """Run cargo's tests, then pytest's; return the exit status."""
    crates = [f"--package={crate}" for crate in sorted(choice.crates - {"edl-python"})]
    if crates:
        done = subprocess.run(["cargo", "test", "--locked", *crates], cwd=ROOT)
        if done.returncode != 0:
            return done.returncode
    pytest = [sys.executable, "-m", "pytest", *flags, *choice.why]
    return subprocess.run(pytest, cwd=ROOT).returncode if choice.why else 0


def _folders(path: str) -> set[str]:
    """Return the folders of a Python file, without the folders that all its neighbours share."""
    first, *others = Path(path).parent.parts or [""]
    if not path.endswith(".py"):
        return set()
    alone = {"benchmarks", "scripts"} & {first}
    return alone | set(others[1:] if first == "tests" else others)


def _module(path: str) -> str:
    """Return the module name of a file. Files of the zoo have names from its folder."""
    parts = Path(path).with_suffix("").parts
    parts = parts[1:] if parts[0] == "model_zoo" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _git(root: Path, *words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
