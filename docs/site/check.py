"""Checks that every link of the built site leads to a file, and to a place in it.

    python docs/site/check.py FOLDER

Links to other hosts are counted, and not followed.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page, and the places in it that a link can name."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the tag links to, and its name."""
        found = dict(attrs)
        for key in ("href", "src"):
            if link := found.get(key):
                self.links.append(link)
        for key in ("id", "name"):
            if place := found.get(key):
                self.places.add(place)


def read(path: Path) -> Page:
    """Return a page of the site."""
    page = Page()
    page.feed(path.read_text())
    return page


def broken(pages: dict[Path, Page]) -> list[str]:
    """Return what is wrong with links within the site, one line each."""
    problems = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                problems.append(f"{path}: {link}: no such file")
            elif parts.fragment and target in pages:
                place = unquote(parts.fragment)
                if place not in pages[target].places:
                    problems.append(f"{path}: {link}: no such place in it")
    return problems


def main(folder: Path) -> int:
    """Check the site in a folder, and print what is wrong."""
    pages = {path.resolve(): read(path) for path in folder.rglob("*.html")}
    problems = broken(pages)
    outside = sum(bool(urlsplit(link).netloc) for page in pages.values() for link in page.links)
    inside = sum(len(page.links) for page in pages.values()) - outside
    print("\n".join([*problems, f"{len(pages)} pages, {inside} links within, {outside} to others"]))
    return 1 if problems or not inside else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
