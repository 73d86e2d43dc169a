"""Folders of images: each folder in the folder is a class, as in `keras` and `torchvision`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import numpy as np

from elasticdl.data.base import Metadata, Records
from elasticdl.data.files import CHUNK_BYTES
from elasticdl.errors import DataError
from elasticdl.job import Shard

EXTENSIONS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp")
# Such a file beside folders of images is the data; its records often name the images.
_TABLES = (".csv", ".tsv", ".parquet", ".pq", ".jsonl", ".recordio", ".rio", ".tfrecord")
_CHUNK_IMAGES = 256


class ImageFolderReader:
    """Reads `FOLDER/CLASS/NAME.jpg`; ignores other files.

    A record has three columns: `image` (the undecoded bytes of the file), `label` (the number of
    its class: 0 for the first by name) and `path` (`CLASS/NAME.jpg`). A class is a shard, with its
    files in order.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._classes = _folders(folder)
        self._files = cache(_images)  # tasks of one class share one listing of its folder
        if not self._classes:
            raise DataError(
                f"{folder}: expected a folder for each class of images, found none in it"
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers."""
        return tuple(self._classes)

    @property
    def metadata(self) -> Metadata:
        """The columns."""
        kinds = {"image": object, "label": np.int64, "path": object}
        return Metadata(tuple(kinds), {name: np.dtype(kind) for name, kind in kinds.items()})

    def shards(self) -> list[Shard]:
        """List the classes with their numbers of images."""
        folders = [os.path.join(self._folder, name) for name in self._classes]
        shards = [Shard(folder, 0, len(self._files(folder))) for folder in folders]
        found = [shard for shard in shards if shard.num_records > 0]
        if not found:
            raise DataError(
                f"{self._folder}: no images ({', '.join(EXTENSIONS)}) in its "
                f"{len(shards):,} folders"
            )
        return found

    def read(self, shard: Shard) -> Iterator[Records]:
        """Yield the images of a class."""
        name = os.path.basename(shard.name)
        if os.path.dirname(shard.name) != self._folder or name not in self._classes:
            raise DataError(
                f"{shard.name}: not one of the {len(self._classes):,} classes of {self._folder}"
            )
        files = self._files(shard.name)
        if shard.end > len(files):
            raise DataError(
                f"{shard.name}: images [{shard.start}, {shard.end}) were asked for, but it has "
                f"{len(files)}; has the folder changed since they were counted?"
            )
        label = self._classes.index(name)
        start = shard.start
        while start < shard.end:
            images = _read_some(shard.name, files[start : min(shard.end, start + _CHUNK_IMAGES)])
            paths = [f"{name}/{file}" for file in files[start : start + len(images)]]
            yield Records(
                start,
                columns={
                    "image": _objects(images),
                    "label": np.full(len(images), label, dtype=np.int64),
                    "path": _objects(paths),
                },
            )
            start += len(images)


def is_image_folder(path: str) -> bool:
    """Return whether a folder has no data, but images in one of its first three folders."""
    if not os.path.isdir(path) or _files(path, (*EXTENSIONS, *_TABLES)):
        return False
    # A folder may have thousands of classes, so this reads only a few of them.
    return any(_images(os.path.join(path, name)) for name in _folders(path)[:3])


def _folders(path: str) -> list[str]:
    return sorted(entry.name for entry in _entries(path) if entry.is_dir())


def _images(path: str) -> list[str]:
    return _files(path, EXTENSIONS)


def _files(path: str, extensions: tuple[str, ...]) -> list[str]:
    names = (entry.name for entry in _entries(path) if entry.is_file())
    return sorted(name for name in names if name.lower().endswith(extensions))


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if not entry.name.startswith((".", "_"))]
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _read_some(folder: str, files: list[str]) -> list[bytes]:
    """Read images until a chunk is full; at least one."""
    images: list[bytes] = []
    num_bytes = 0
    for file in files:
        path = os.path.join(folder, file)
        try:
            with open(path, "rb") as stream:
                images.append(stream.read())
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        if not images[-1]:
            raise DataError(f"{path}: is empty; expected an image")
        num_bytes += len(images[-1])
        if num_bytes >= CHUNK_BYTES:
            break
    return images


def _objects(values: list[bytes] | list[str]) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    # `np.array` would make fixed-width strings, which lose zero bytes at the end of an image.
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
