"""The files of a Rust crate use each other in one direction, as the rooms of the package do."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CRATES = Path(__file__).parents[2] / "crates"
Module = tuple[str, ...]


def expand(tree: str) -> Iterator[str]:
    """Yield the paths of a `use`: `a::{b, c::{d}}` has a::b and a::c::d."""
    if (group := re.fullmatch(r"([^{]*)\{(.*)\}", tree.strip(), re.DOTALL)) is None:
        yield tree.split(" as ")[0].strip()
        return
    prefix, rest = group.groups()
    depth, start = 0, 0
    for at, character in enumerate(rest + ","):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            if rest[start:at].strip():
                yield from (prefix + path for path in expand(rest[start:at]))
            start = at + 1


USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")


def code_of(text: str) -> str:
    """Return a file without its comments and tests, which may use anything."""
    return re.sub(r"//[^\n]*", "", text).split("#[cfg(test)]\nmod tests {")[0]


def paths_in(text: str) -> Iterator[list[str]]:
    """Yield the paths that a file's code names."""
    code = code_of(text)
    for _, tree in USE.findall(code):
        yield from (path.split("::") for path in expand(tree))
    for path in re.findall(r"\b(?:crate|super)(?:::\w+)+", USE.sub("", code)):
        yield path.split("::")


def passed_on(text: str) -> Iterator[list[str]]:
    """Yield the paths of what a file passes on as its own."""
    for public, tree in USE.findall(code_of(text)):
        if public:
            yield from (path.split("::") for path in expand(tree))


def module_of(path: Path, src: Path) -> Module:
    *folders, name = path.relative_to(src).with_suffix("").parts
    return (*folders,) if name in ("mod", "lib") else (*folders, name)


def resolve(path: list[str], module: Module, files: dict[Module, str]) -> Module | None:
    """Return the file that a path leads to, also by the name that a folder passes on."""
    start, *rest = (part.strip() for part in path)
    if start not in ("crate", "super", "self"):
        return None
    at: Module = () if start == "crate" else module[: len(module) - (start == "super")]
    while rest and rest[0] == "super":
        at, rest = at[:-1], rest[1:]
    while rest and (*at, rest[0]) in files:
        at, rest = (*at, rest[0]), rest[1:]
    for other in passed_on(files[at]) if rest and at != module else ():
        if other[-1] == rest[0]:
            is_beside = (*at, other[0]) in files
            return resolve(["self", *other] if is_beside else other, at, files) or at
    return at


BESIDE = {("features",)}
"""Folders whose files add methods to what files beside them define, and are called by these.

`crates/edl-store/src/features`: all that a feature of rows does is in one place, its methods of
tables and stripes too.
"""


def edges(files: dict[Module, str]) -> dict[Module, set[Module]]:
    """Return which file or folder uses which beside it.

    A file and the folder of its name are one module by the rules of the language: those in the
    folder add methods to what the file defines. So neither is above the other. The same is true of
    the folders in `BESIDE`.
    """
    found: dict[Module, set[Module]] = {}
    for module, text in files.items():
        for path in paths_in(text):
            used = resolve(path, module, files)
            pairs = enumerate(zip(module, used or (), strict=False), 1)
            end = next((n for n, (a, b) in pairs if a != b), None)
            if used and end and module[:end] not in BESIDE:
                found.setdefault(module[:end], set()).add(used[:end])
    return found


def circle(uses: dict[Module, set[Module]]) -> list[str]:
    """Return the files of a circle, the first one again at the end; nothing if there is none."""
    done: set[Module] = set()

    def walk(module: Module, way: list[Module]) -> list[Module]:
        if module in way:
            return [*way[way.index(module) :], module]
        if module in done:
            return []
        for used in sorted(uses.get(module, ())):
            if found := walk(used, [*way, module]):
                return found
        done.add(module)
        return []

    ways = (walk(module, []) for module in sorted(uses))
    return ["::".join(module) for module in next((way for way in ways if way), [])]


@pytest.mark.parametrize("crate", sorted(path.name for path in CRATES.iterdir()))
def test_no_files_of_a_crate_use_each_other_in_a_circle(crate):
    src = CRATES / crate / "src"
    paths = [path for path in src.rglob("*.rs") if not re.search(r"/tests(/|\.rs)", str(path))]
    found = circle(edges({module_of(path, src): path.read_text() for path in paths}))
    assert not found, f"{crate}: {' -> '.join(found)}; move what two of them need to a third"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a": "use crate::b::X;", "b": "use super::a::Y;"}, ["a", "b", "a"]),
        (
            {"a": "use crate::{c, b::{X, Y}};", "b": "fn f(x: crate::a::Y) {}", "c": ""},
            ["a", "b", "a"],
        ),
        ({"a": "use crate::X;", "b": "use crate::a;", "": "pub use b::X;"}, ["a", "b", "a"]),
        ({"a": "use crate::b;", "b": "mod c;", "b/c": "use crate::a;"}, ["a", "b", "a"]),
        ({"a": "use crate::b;", "b": "// use crate::a;", "c": "use crate::{a, b};"}, []),
        ({"a": "mod b; use self::b::X;", "a/b": "use super::Y;"}, []),
        ({"a": "use crate::b;", "b": "#[cfg(test)]\nmod tests { use crate::a; }"}, []),
    ],
)
def test_a_circle_is_found_where_there_is_one(files, expected):
    modules = {"": ""} | files
    named = {tuple(filter(None, name.split("/"))): text for name, text in modules.items()}
    assert circle(edges(named)) == expected
