"""Reads the dense parameters of a checkpoint, by name, without a store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.checkpoints.dense import DENSE
from elasticdl.checkpoints.versions import MANIFEST, parse_manifest
from elasticdl.errors import CheckpointError

_VECTORS = "-vectors.safetensors"
_PREFIX = 8  # bytes before the header of a safetensors file: its length


def dense_parameters(
    folder: Path, entries: Iterable[Mapping[str, Any]] | None = None
) -> dict[str, NDArray[np.float32]]:
    """Return the dense parameters by name, each in its shape.

    Args:
        folder: A checkpoint. For a hybrid job the part with the dense parameters is read.
        entries: The manifest's entry of each replica, if the manifest is not written yet.

    Raises:
        CheckpointError: The parameters cannot be read.
    """
    if (folder / DENSE).is_dir():
        return dense_parameters(folder / DENSE)
    try:
        if entries is None:
            entries = parse_manifest((folder / MANIFEST).read_bytes())["replicas"]
        replicas = sorted(entries, key=lambda entry: int(entry["replica"]))
        parts = [_dense(folder / _vectors_of(entry)) for entry in replicas]
        # The replicas divide the flat vector, so a variable may lie in two files.
        whole = np.concatenate(parts)
        variables = replicas[0]["model"]["dense"]
        return {
            variable["name"]: _of(whole, int(variable["offset"]), variable["shape"])
            for variable in variables
        }
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{folder}: its dense parameters cannot be read: {error}") from error


def _vectors_of(entry: Mapping[str, Any]) -> str:
    (name,) = (file["name"] for file in entry["files"] if file["name"].endswith(_VECTORS))
    return str(name)


def _dense(path: Path) -> NDArray[np.float32]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_PREFIX), "little")
        tensor = json.loads(file.read(length))["dense"]
        begin, end = tensor["data_offsets"]
        file.seek(_PREFIX + length + begin)
        return np.frombuffer(file.read(end - begin), dtype="<f4")


def _of(whole: NDArray[np.float32], offset: int, shape: list[int]) -> NDArray[np.float32]:
    return whole[offset : offset + int(np.prod(shape, dtype=np.int64))].reshape(shape)
