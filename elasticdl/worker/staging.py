"""The parameters on their way to a joiner while the others go on: both ends.

They come part by part, each as it is when it is given. The joiner makes all updates from the first
part on, in a store that holds anything at first. An update changes each number, with its optimizer
slots, by itself and by its gradient alone. So a part that has come has the bits of the others from
then on, and all of it has them when the last part is here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elasticdl._core import PsClient, Store
from elasticdl.errors import ElasticdlError
from elasticdl.worker.collective.group import Bytes
from elasticdl.worker.collective.transfer import Layout


class Giver:
    """What rank 0 gives of its store."""

    def __init__(self, store: Store, layout: Layout, start: int = 0) -> None:
        """Begin with the part that begins at `start`."""
        self._store = store
        self._layout = layout
        self._part = (start, start, 0)
        self._buffer = np.empty(0, np.float32)

    def next_piece(self, most_bytes: int) -> tuple[int, bool]:
        """Choose what comes next; return how many bytes it has, and whether it is the last."""
        start = self._part[1]
        end, num_numbers = self._layout.next_part(start, most_bytes)
        self._part = start, end, num_numbers
        return num_numbers * self._buffer.itemsize, end == self._layout.end

    def piece(self) -> Bytes:
        """Return it as it is now; the memory is used again for the next one."""
        start, end, num_numbers = self._part
        self._buffer = _at_least(self._buffer, num_numbers)
        part = self._buffer[:num_numbers]
        self._store.read_part(start, end, part)
        return part.view(np.uint8)


class StagedParameters:
    """What a joiner has so far; its store makes all updates meanwhile."""

    def __init__(self, store: Store, client: PsClient, layout: Layout, start: int = 0) -> None:
        """Wait for the part that begins at `start`; those before it are here."""
        self.store = store
        self.client = client
        self.has_come = start
        self._layout = layout
        self._buffer = np.empty(0, np.float32)

    @property
    def is_whole(self) -> bool:
        """Whether all of it is here."""
        return self.has_come == self._layout.end

    def room_for(self, num_bytes: int) -> Bytes:
        """Return where the next piece is to be written."""
        num_numbers = num_bytes // self._buffer.itemsize
        self._buffer = _at_least(self._buffer, num_numbers)
        return self._buffer[:num_numbers].view(np.uint8)

    def take(self, num_bytes: int, is_last: bool) -> None:
        """Take the piece that has been written there."""
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
    """Return memory for so many numbers, the same as before if it is enough."""
    return buffer if buffer.size >= size else np.empty(size, np.float32)
