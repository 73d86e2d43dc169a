"""Packs the model folder as a ConfigMap; it travels with the job, so no own image is needed."""

from __future__ import annotations

import base64
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.errors import ConfigError

MAX_BYTES = 1024 * 1024  # of a ConfigMap
_SPARE_BYTES = 16 * 1024  # for its names


@dataclass(frozen=True, slots=True)
class Packed:
    """Files in the form in which a ConfigMap holds them.

    text: key -> the content of a file in UTF-8.
    binary: key -> any other content, in Base64.
    paths: key -> the path of the file in the folder; a key may hold no "/".
    """

    text: dict[str, str] = field(default_factory=dict)
    binary: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)


def pack(folder: Path, what: str = "--model_zoo") -> Packed:
    """Read a folder; hidden files and files that Python compiled are left out.

    Args:
        folder: The folder.
        what: The flag with which the user names the folder.

    Raises:
        ConfigError: There is no such folder, or the folder is too large for a ConfigMap.
    """
    if not folder.is_dir():
        raise ConfigError(f"{what}: expected a folder, found none at {folder}")
    packed = Packed()
    size = 0
    for path in sorted(_files(folder)):
        place = path.relative_to(folder).as_posix()
        content = path.read_bytes()
        size += len(content)
        if size > MAX_BYTES - _SPARE_BYTES:
            raise ConfigError(
                f"{what}={folder}: more than 1 MiB of files, which is what a ConfigMap takes: "
                "put the folder into an image (elasticdl zoo build; --image_name), or on a volume "
                f"(--volume; {what} is then its path in the pods, with --send_model_zoo=false)"
            )
        key = _key(place, packed.paths)
        packed.paths[key] = place
        try:
            packed.text[key] = content.decode()
        except UnicodeDecodeError:
            packed.binary[key] = base64.b64encode(content).decode("ascii")
    return packed


def _key(place: str, taken: Container[str]) -> str:
    """Return a key that is like the path: letters, digits, "-", "_" and "."."""
    key = wanted = re.sub(r"[^A-Za-z0-9_.-]", ".", place).strip(".")[-200:]
    number = 1
    while key in taken:
        number += 1
        key = f"{number}.{wanted}"
    return key


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files(path)
        elif path.is_file():
            yield path
