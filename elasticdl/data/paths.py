"""Turns the place of data, as a user writes it, into the files that hold it."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from functools import cache

from elasticdl.data import remote
from elasticdl.data.copies import unpacked_name
from elasticdl.data.folder_columns import is_of_column
from elasticdl.errors import DataError

_GLOB_CHARACTERS = frozenset("*?[")
_IGNORED_SUFFIXES = (".idx", ".crc", ".tmp")  # indexes, checksums, what is being written


def expand_paths(expression: str) -> list[str]:
    """List the files of a file, a folder, a glob (`**` too), or several of these with commas.

    Of a folder, all files are listed but hidden ones, names that begin with `_`, and indexes. A
    glob passes over folders of such names, unless it has such a name itself. If a folder has no
    files, the files of its folders `column=value` are listed. The files of each part are sorted, so
    every process lists them alike; none is listed twice.

    Raises:
        DataError: A part names nothing, an empty folder, or a folder that cannot be read.
    """
    if os.path.exists(expression):  # even if its name has commas or brackets
        return _expand_one(expression)
    parts = [part.strip() for part in expression.split(",") if part.strip()]
    if not parts:
        raise DataError(f"expected files, a folder or a glob, found {expression!r}")
    files = [file for part in parts for file in _expand_one(part)]
    found: dict[tuple[str, str], str] = {}
    real = cache(os.path.realpath)
    for file in files:
        folder, name = os.path.split(file)
        # Two parts, or a link to a folder, may name the same file; its records must not come twice.
        found.setdefault((folder if remote.is_url(file) else real(folder), name), file)
    return list(found.values())


def folders_left_out(expression: str) -> list[str]:
    """List folders with data files inside the folders that are read; their files are not read."""
    parts = [part.strip() for part in expression.split(",")]
    places = [expression] if os.path.isdir(expression) else parts
    local = [os.path.expanduser(place) for place in places if not remote.is_url(place)]
    found: list[str] = []
    for folder in filter(os.path.isdir, local):
        within = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        within = [path for path in within if _is_data(path)]
        # A folder without files of its own is read by its folders `column=value`.
        if any(map(os.path.isfile, within)):
            found += [path for path in within if os.path.isdir(path) and _has_files(path)]
    return found


def read_twice(files: Sequence[str]) -> list[str]:
    """List the compressed files whose uncompressed form is also in the list."""
    known = set(files)
    plain = {file: unpacked_name(file) for file in files if not remote.is_url(file)}
    return [file for file, name in plain.items() if name != file and name in known]


def _has_files(folder: str) -> bool:
    inside = glob.iglob(os.path.join(glob.escape(folder), "**", "*"), recursive=True)
    return any(os.path.isfile(path) and _is_data(path) for path in inside)


def _expand_one(part: str) -> list[str]:
    if remote.is_url(part):
        found = [url for url in remote.list_files(part) if _is_data(url) and _is_meant(url, part)]
        if not found:
            raise DataError(f"{part}: no data files; names that begin with _ or . do not count")
        return found
    scheme, colon, path = part.partition("://")
    part = os.path.expanduser(path if colon and scheme in remote.NOT_REMOTE else part)
    if os.path.isdir(part):
        return _files_of_folder(part)
    if os.path.exists(part):  # `data convert` reads pipes, too
        return [part]
    if not _GLOB_CHARACTERS.intersection(part):
        raise DataError(f"{part}: no such file or folder (working folder: {os.getcwd()})")
    found = sorted(glob.glob(part, recursive=True))
    files = [file for file in found if os.path.isfile(file) and _is_data(file)]
    files = [file for file in files if _is_meant(file, part)]
    if not files and any(map(os.path.isdir, found)):
        raise DataError(f"{part}: only folders match; give {part}/* for the files in them")
    if not files:
        raise DataError(f"{part}: no file matches (working folder: {os.getcwd()})")
    return files


def _files_of_folder(folder: str) -> list[str]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
    paths = [os.path.join(folder, name) for name in names]
    files = [path for path in paths if os.path.isfile(path) and _is_data(path)]
    if files:
        return files
    if found := _files_below_columns(paths):
        return found
    if any(os.path.isdir(path) for path in paths):
        raise DataError(
            f"{folder}: this folder has folders but no data files; "
            f"give {os.path.join(folder, '**', '*')} for the files in them"
        )
    raise DataError(f"{folder}: this folder has no data files")


def _files_below_columns(paths: Sequence[str]) -> list[str]:
    """Return the files of a table whose folders are `column=value`; none if it is no such table."""
    folders = [path for path in paths if _is_data(path)]
    if not all(os.path.isdir(path) and is_of_column(os.path.basename(path)) for path in folders):
        return []
    # A day without rows may have a folder without files.
    files = [file for each in folders if _has_files(each) for file in _files_of_folder(each)]
    is_table = all(file.endswith((".parquet", ".pq")) for file in files)  # lines get no column
    return files if is_table else []


def _is_meant(path: str, pattern: str) -> bool:
    """Return whether a glob means a file that it matches: not one in a folder such as `_temporary`.

    Spark and others write to such folders what is no data yet, or no data at all. A glob with such
    a name in it means the folder.
    """
    parts = pattern.split("/")
    fixed = next((n for n, part in enumerate(parts) if _GLOB_CHARACTERS & set(part)), len(parts))
    asks = any(part.startswith((".", "_")) for part in parts[fixed:])
    return asks or not any(part.startswith((".", "_")) for part in path.split("/")[fixed:-1])


def _is_data(path: str) -> bool:
    name = os.path.basename(path)
    return not name.startswith((".", "_")) and not name.endswith(_IGNORED_SUFFIXES)
