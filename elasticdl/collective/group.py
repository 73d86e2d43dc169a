"""A ring that carries more than gradients: what each rank says, and what rank 0 has.

The ring adds float32. So bytes travel as numbers, two bytes each, which float32 holds exactly:
where one rank has the numbers and all others zeros, the sum is what the one rank has. That costs
twice the bytes, and needs no second way between the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import Ring
from elasticdl.collective.rounds import OFFER_BYTES, Offer, pack, unpack

Float32 = NDArray[np.float32]
Shorts = NDArray[np.uint16]

_SHORT = np.dtype("<u2")
SHORT_BYTES = _SHORT.itemsize
_PIECE = 1 << 20  # numbers of one reduction while bytes are given
_PATIENCE_SECONDS = 7 * 24 * 3600.0
"""How long others are waited for who compute: as long as they live. The master ends who hangs."""
_REDUCE_SECONDS = 600.0
"""How long a reduction takes at most, once all have come to it."""


class Group:
    """The ranks of a world, connected. For one thread."""

    def __init__(self, ring: Ring, rank: int, size: int) -> None:
        self._ring = ring
        self._rank = rank
        self._size = size
        self._mine = np.zeros(size * OFFER_BYTES // 2, np.float32)
        self._all = np.empty_like(self._mine)
        self._carried: tuple[Float32, Float32] | None = None  # zeros, but on rank 0

    def exchange(self, offer: Offer) -> list[Offer]:
        """Say what this rank offers; return the offers of all, by rank. Waits for all.

        Raises:
            RingError: A rank is lost.
        """
        numbers = OFFER_BYTES // 2
        self._mine[self._rank * numbers :][:numbers] = _as_shorts(pack(offer))
        self._add(self._mine, self._all, 1, _PATIENCE_SECONDS)
        found = _to_bytes(self._all)
        return [unpack(found[rank * OFFER_BYTES :][:OFFER_BYTES]) for rank in range(self._size)]

    def mean(self, values: Sequence[Float32], out: Sequence[Float32], weight: int) -> None:
        """Write the mean of all ranks' values into `out`, weighted; the same bits on all ranks.

        Raises:
            RingError: A rank is lost; `values` are as they were.
        """
        self._ring.all_reduce(values, out, weight, timeout_seconds=_REDUCE_SECONDS)

    def sum(self, values: Float32) -> Float32:
        """Return the sum of all ranks' values; the same bits on all ranks.

        Raises:
            RingError: A rank is lost; `values` are as they were.
        """
        out = np.empty_like(values)
        self._add(values, out, 1, _REDUCE_SECONDS)
        return out

    def give(self, data: bytes | None, is_wanted: bool = True) -> bytes:
        """Return the bytes of rank 0, which alone gives any, on the ranks that want them.

        They go in pieces. A rank that wants none needs memory for one piece.

        Args:
            data: On rank 0 what is given, elsewhere None.
            is_wanted: Whether this rank keeps what it is given; if not, it returns none.

        Raises:
            RingError: A rank is lost.
        """
        size = np.zeros(4, np.float32)
        if data is not None:
            size[:] = _as_shorts(len(data).to_bytes(8, "little"))
        found = np.empty_like(size)
        # What rank 0 gives may take it a while to write.
        self._add(size, found, 1, _PATIENCE_SECONDS)
        num_bytes = int.from_bytes(_to_bytes(found), "little")
        num_shorts = -(-num_bytes // 2)
        out = np.empty(num_shorts if is_wanted else 0, _SHORT)
        self.give_shorts(
            None if data is None else _as_shorts(data), num_shorts, out if is_wanted else None
        )
        return out.tobytes()[:num_bytes]

    def give_shorts(self, values: Shorts | None, length: int, out: Shorts | None) -> None:
        """Write the numbers of rank 0, of which all ranks know how many there are, into `out`.

        Args:
            values: On rank 0 what is given, elsewhere None.
            length: How many they are.
            out: On a rank that wants them; elsewhere None.

        Raises:
            RingError: A rank is lost.
        """
        if self._carried is None:
            self._carried = np.zeros(_PIECE, np.float32), np.empty(_PIECE, np.float32)
        carried, found = self._carried  # kept from one piece to the next: new memory costs time
        for start in range(0, length, _PIECE):
            end = min(start + _PIECE, length)
            if values is not None:
                carried[: end - start] = values[start:end]
            self._add(carried[: end - start], found[: end - start], 1, _REDUCE_SECONDS)
            if out is not None:
                np.copyto(out[start:end], found[: end - start], casting="unsafe")

    def _add(self, values: Float32, out: Float32, weight: int, timeout_seconds: float) -> None:
        self._ring.all_reduce([values], [out], weight, timeout_seconds=timeout_seconds, mean=False)

    def close(self) -> None:
        """Leave the ring."""
        self._ring.close()


def _as_shorts(data: bytes) -> Shorts:
    """Return bytes as numbers from 0 to 65,535; an odd last byte is followed by 0."""
    return np.frombuffer(data + b"\0" if len(data) % 2 else data, _SHORT)


def _to_bytes(numbers: Float32) -> bytes:
    return numbers.astype(_SHORT).tobytes()
