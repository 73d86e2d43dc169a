"""Gives the parameters to a joining rank while the others train: both ends.

The parameters come part by part, each as it is when it is given. The joining rank makes all updates
from the first part on, in a store with any content. An update changes each number alone: only its
gradient and its optimizer slots are used. So a part has the same bits as on the other ranks from
the time when it comes. When the last part is here, all parameters have them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import PsClient, Store
from elasticdl.errors import ElasticdlError
from elasticdl.packages.all_reduce.collective.group import Bytes
from elasticdl.packages.all_reduce.collective.transfer import Layout


class Giver:
    """Rank 0 gives its store part by part."""

    def __init__(self, store: Store, layout: Layout, start: int = 0) -> None:
        """Begin with the part that begins at `start`."""
        self._store = store
        self._layout = layout
        self._part = (start, start, 0)
        self._buffer = np.empty(0, np.float32)

    def next_piece(self, most_bytes: int) -> tuple[int, bool]:
        """Choose the next part; return its bytes, and whether it is the last one."""
        start = self._part[1]
        end, num_numbers = self._layout.next_part(start, most_bytes)
        self._part = start, end, num_numbers
        return num_numbers * self._buffer.itemsize, end == self._layout.end

    def piece(self) -> Bytes:
        """Return the part as it is now; the memory is used again for the next part."""
        start, end, num_numbers = self._part
        self._buffer = _at_least(self._buffer, num_numbers)
        part = self._buffer[:num_numbers]
        self._store.read_part(start, end, part)
        return part.view(np.uint8)


class StagedParameters:
    """The parameters that a joining rank has so far; its store makes all updates meanwhile."""

    def __init__(self, store: Store, client: PsClient, layout: Layout, start: int = 0) -> None:
        """Wait for the part that begins at `start`; the parts before it are here."""
        self.store = store
        self.client = client
        self.has_come = start
        self._layout = layout
        self._buffer = np.empty(0, np.float32)

    @property
    def is_whole(self) -> bool:
        """Return whether all parts are here."""
        return self.has_come == self._layout.end

    def room_for(self, num_bytes: int) -> Bytes:
        """Return the memory for the next piece."""
        num_numbers = num_bytes // self._buffer.itemsize
        self._buffer = _at_least(self._buffer, num_numbers)
        return self._buffer[:num_numbers].view(np.uint8)

    def take(self, num_bytes: int, is_last: bool) -> None:
        """Write the piece from that memory into the store."""
        end, num_numbers = self._layout.next_part(self.has_come, num_bytes)
        if num_numbers * self._buffer.itemsize != num_bytes or is_last != (end == self._layout.end):
            raise ElasticdlError(
                f"rank 0 has given {num_bytes} bytes of the parameters from number {self.has_come}"
                f" of {self._layout.end}, expected {num_numbers * self._buffer.itemsize}; "
                "this is a defect"
            )
        self.store.write_part(self.has_come, end, self._buffer[:num_numbers])
        self.has_come = end


def _at_least(buffer: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Return memory for this many numbers: the same as before, if it is large enough."""
    return buffer if buffer.size >= size else np.empty(size, np.float32)
