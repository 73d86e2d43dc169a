"""Arrays in the messages between workers and model servers, and their largest size."""

from __future__ import annotations

import numpy as np

from elasticdl.backends.base import Float32, Int64
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.towers import Tower
from elasticdl.rpc.codec import MessageError

MAX_BYTES = 256 * 1024 * 1024
_ROOM = 2  # the gradients of rows come in the same message as those of the variables

SIZE_LIMITS = [
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES),
]


def ids_of(message: bytes) -> Int64:
    """Return ids, which must be in order and each once.

    Raises:
        MessageError: The ids are not in order, or one comes twice.
    """
    if len(message) % 8:
        raise MessageError(f"expected int64 ids, found {len(message)} bytes")
    ids = np.frombuffer(message, "<i8")
    if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
        raise MessageError("expected ids in order, each once")
    return ids


def floats_of(message: bytes, width: int) -> Float32:
    """Return float32 numbers, shape (n, width).

    Raises:
        MessageError: The bytes are not such an array.
    """
    if width == 0 or len(message) % (4 * width):
        raise MessageError(f"expected rows of {width} float32, found {len(message)} bytes")
    return np.frombuffer(message, "<f4").reshape(-1, width)


def dense_of(message: bytes, tower: Tower) -> Float32 | None:
    """Return the dense parameters of a tower; None if the message has none.

    Raises:
        MessageError: The tower has another number of parameters.
    """
    if not message:
        return None
    size = sum(part.stop - part.start for part in tower.dense)
    found = floats_of(message, size)
    if len(found) != 1:
        raise MessageError(f"expected {size} dense parameters, found {found.size}")
    return found.reshape(size)


def check_size(tower: Tower) -> None:
    """Refuse a tower whose gradients do not fit a message.

    Raises:
        ModelError: The tower is too large.
    """
    num_bytes = 4 * sum(part.stop - part.start for part in tower.dense)
    if num_bytes * _ROOM > MAX_BYTES:
        raise ModelError(
            f"Remote {tower.name!r}: the tower has {num_bytes:,} bytes of variables, whose "
            f"gradients travel with each minibatch: expected at most {MAX_BYTES // _ROOM:,}"
        )
