"""Lists the licence of each package and crate that elasticdl needs: `python -m scripts.licences`.

The packages come from `pyproject.toml` and its extras, with their own dependencies, as far as they
are installed. The crates come from `Cargo.lock`. Packages for development only are left out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTION = "elasticdl-train"

# Licences that let a program under Apache-2.0 use, and pass on, what is under them. MPL-2.0 asks
# for the source of its own files alone.
PERMISSIVE = frozenset(
    {
        *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "ISC", "MIT"),
        *("MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Unicode-3.0", "Unlicense", "Zlib"),
    }
)
# Licence names that packages used before there were standard names.
_EARLIER_NAMES = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "cc0": "CC0-1.0",
    "isc license": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}


@dataclass(frozen=True, slots=True)
class Licensed:
    """A package or crate, and its licence as an SPDX expression; empty if it has none."""

    name: str
    version: str
    licence: str


def is_permissive(expression: str) -> bool:
    """Whether an alternative of an SPDX expression is a permissive licence.

    `A OR B` needs one of the two, `A AND B` needs both, `A WITH exception` counts as A.
    """
    words = re.findall(r"\(|\)|[\w.+-]+", expression.replace("/", " OR "))
    try:
        allowed, rest = _alternatives(words)
    except IndexError:
        return False
    return allowed and not rest


def _alternatives(words: list[str]) -> tuple[bool, list[str]]:
    allowed, words = _together(words)
    while words and words[0] == "OR":
        other, words = _together(words[1:])
        allowed = allowed or other
    return allowed, words


def _together(words: list[str]) -> tuple[bool, list[str]]:
    allowed, words = _one(words)
    while words and words[0] == "AND":
        other, words = _one(words[1:])
        allowed = allowed and other
    return allowed, words


def _one(words: list[str]) -> tuple[bool, list[str]]:
    if words[0] == "(":
        allowed, words = _alternatives(words[1:])
        return allowed, words[1:]
    rest = words[3:] if words[1:2] == ["WITH"] else words[1:]
    return words[0] in PERMISSIVE, rest


def licence_of(package: metadata.Distribution) -> str:
    """Return the licence of a package from the newest kind of field that names it."""
    about = package.metadata
    if expressions := about.get_all("License-Expression"):
        return expressions[0]
    classifiers = [
        line.rpartition("::")[2].strip()
        for line in about.get_all("Classifier", [])
        if line.startswith("License ::") and not line.endswith("Approved")
    ]
    first_line = (about.get_all("License") or [""])[0].strip().partition("\n")[0]
    # Classifiers may be alternatives or all hold; that all do is the stricter reading.
    named = [name for name in classifiers or [first_line] if name]
    names = [_EARLIER_NAMES.get(name.lower(), name) for name in named]
    return " AND ".join(names) or _by_its_text(package)


def _by_its_text(package: metadata.Distribution) -> str:
    """Return the licence whose text is in the package, if it is one of two known texts."""
    for name in package.metadata.get_all("License-File", []):
        begin = " ".join((package.read_text(f"licenses/{name}") or "").split())[:200]
        if re.search(r"Apache License,? Version 2\.0", begin):
            return "Apache-2.0"
        if "MIT License" in begin:
            return "MIT"
    return ""


def packages(start: str = DISTRIBUTION) -> Iterator[Licensed]:
    """Yield the installed packages that `start` needs with any of its extras."""
    seen, waiting = {_plain(start)}, _needed_by(start, with_extras=True)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of another system or version of Python, or PyTorch's
        yield Licensed(package.name, package.version, licence_of(package))
        waiting += _needed_by(name, with_extras=False)


def _needed_by(name: str, *, with_extras: bool) -> list[str]:
    return [
        _plain(re.match(r"[\w.-]+", requirement)[0])  # type: ignore[index]  # they begin with a name
        for requirement in metadata.requires(name) or ()
        if with_extras or not re.search(r"\bextra\b", requirement.partition(";")[2])
    ]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def crates() -> Iterator[Licensed]:
    """Yield the crates of Cargo.lock that are not of this workspace."""
    done = subprocess.run(
        ["cargo", "metadata", "--format-version=1", "--locked"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    found = json.loads(done.stdout)
    own = set(found["workspace_members"])
    for crate in found["packages"]:
        if crate["id"] not in own:
            yield Licensed(crate["name"], crate["version"], crate["license"] or "")


def table(title: str, rows: Iterable[Licensed]) -> tuple[str, list[Licensed]]:
    """Return the lines of a table, and the rows whose licence is not known as permissive."""
    found = sorted(rows, key=lambda row: row.name.lower())
    lines = [f"{title}: {len(found)}"]
    lines += [f"  {row.name:<36} {row.version:<14} {row.licence or 'none named'}" for row in found]
    return "\n".join(lines), [row for row in found if not is_permissive(row.licence)]


def main() -> int:
    """Print both tables, and the licences that a person must check."""
    unknown = []
    for title, rows in (("Packages of Python", packages()), ("Crates of Rust", crates())):
        text, odd = table(title, rows)
        print(text)
        unknown += odd
    for row in unknown:
        named = row.licence or "no licence"
        print(f"error: {row.name} {row.version} has {named}; look at it", file=sys.stderr)
    return 1 if unknown else 0


if __name__ == "__main__":
    raise SystemExit(main())
