"""Ranks exchange more than gradients: each tells all what it offers, and rank 0 gives bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import Ring
from elasticdl.packages.all_reduce.collective.rounds import Offer, pack, unpack

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_PIECE_BYTES = 64 << 20
"""A piece is given at once, so the time limit of a reduction holds for one piece."""
_PATIENCE_SECONDS = 7 * 24 * 3600.0
"""Ranks that compute are waited for as long as they live. The master ends a worker that hangs."""
_REDUCE_SECONDS = 600.0
"""A reduction takes at most so long once all ranks have come to it."""


class Group:
    """The ranks of a world, connected. For one thread."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def exchange(self, offer: Offer) -> list[Offer]:
        """Say what this rank offers; return the offers of all, by rank. Waits for all.

        Raises:
            RingError: A rank is lost.
        """
        return [unpack(said) for said in self._gather(pack(offer))]

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
        self._ring.all_reduce([values], [out], 1, timeout_seconds=_REDUCE_SECONDS, mean=False)
        return out

    def give(self, data: bytes | None, is_wanted: bool = True) -> bytes:
        """Return the bytes of rank 0, which alone gives any, on the ranks that want them.

        A rank that wants none needs no memory for them.

        Args:
            data: On rank 0 what is given, elsewhere None.
            is_wanted: Whether this rank keeps what it is given; if not, it returns none.

        Raises:
            RingError: A rank is lost.
        """
        # Rank 0 may need a while to write its bytes. The other ranks wait here, with the long time
        # limit.
        sizes = self._gather(len(data or b"").to_bytes(8, "little"))
        num_bytes = int.from_bytes(sizes[0], "little")
        if data is not None:
            self.give_piece(np.frombuffer(data, np.uint8), num_bytes, None)
            return data if is_wanted else b""
        out = np.empty(num_bytes, np.uint8) if is_wanted else None
        self.give_piece(None, num_bytes, out)
        return b"" if out is None else out.tobytes()

    def give_piece(self, values: Bytes | None, num_bytes: int, out: Bytes | None) -> None:
        """Write the bytes of rank 0 into `out`; all ranks know how many bytes there are.

        Args:
            values: On rank 0 what is given, elsewhere None.
            num_bytes: The number of bytes.
            out: On a rank that wants them; elsewhere None.

        Raises:
            RingError: A rank is lost.
        """
        for start in range(0, num_bytes, _PIECE_BYTES):
            end = min(start + _PIECE_BYTES, num_bytes)
            if values is not None:
                self._ring.give(values[start:end], timeout_seconds=_REDUCE_SECONDS)
            elif out is not None:
                self._ring.take(out[start:end], timeout_seconds=_REDUCE_SECONDS)
            else:
                self._ring.pass_on(end - start, timeout_seconds=_REDUCE_SECONDS)

    def _gather(self, data: bytes) -> list[bytes]:
        return self._ring.gather(data, timeout_seconds=_PATIENCE_SECONDS)

    def close(self) -> None:
        """Leave the ring."""
        self._ring.close()
