"""Decides how the ranks of a new world that lack the parameters are given them; pure.

All ranks decide alike, since all know what each rank has said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

AT_ONCE_BYTES = 4 << 20
"""A model whose gradient is not larger is given at once: that takes no longer than a few steps."""
LEAST_PIECE_BYTES = 1 << 20
_FLOAT_BYTES = 4


class TransferWay(Enum):
    """The ways in which parameters are given."""

    NOT = "all have them"
    AT_ONCE = "before the first round"
    BESIDE = "piece by piece, a piece in each round, while training goes on"


def way_of_giving(
    are_behind: Sequence[bool],
    positions: Sequence[int],
    num_numbers: int,
    *,
    has_trained: bool,
    is_deterministic: bool,
) -> TransferWay:
    """Return how the ranks that are behind are given the parameters.

    Ranks that join have no parameters, and do not stop the others. A rank that has parameters, and
    is behind, has lost an update of its last world. It is given the parameters at once: if the
    other ranks are lost, it must be able to replace them.

    Args:
        are_behind: Whether each rank is behind, by rank.
        positions: The position of each rank's parameters, by rank; -1: it has none.
        num_numbers: The size of a gradient together with the change of the state.
        has_trained: Whether rank 0 has been in a round; if not, nobody is stopped.
        is_deterministic: Whether an update waits for tasks of its own, whoever has them.
    """
    behind = [at for at, is_behind in zip(positions, are_behind, strict=True) if is_behind]
    if not behind:
        return TransferWay.NOT
    if not has_trained or is_deterministic:
        return TransferWay.AT_ONCE
    is_small = _FLOAT_BYTES * num_numbers <= AT_ONCE_BYTES
    return TransferWay.AT_ONCE if is_small or max(behind) >= 0 else TransferWay.BESIDE


def piece_bytes(num_numbers: int) -> int:
    """Return the bytes of a piece. Giving a piece takes no longer than reducing the gradient."""
    return max(LEAST_PIECE_BYTES, 2 * num_numbers)


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of a model. A part is a range of its dense values and of its state.

    A part of the dense values also contains the same range of each slot of the optimizer.
    """

    dense: int
    state: int
    slots: int

    @property
    def end(self) -> int:
        """Return where the last part ends."""
        return self.dense + self.state

    def next_part(self, start: int, most_bytes: int) -> tuple[int, int]:
        """Return where a part ends that begins at `start`, and how many numbers it has.

        It has at most `most_bytes` bytes, but at least one value with its slots.
        """
        most = max(1, most_bytes // _FLOAT_BYTES)
        each = 1 + self.slots
        num_dense = min(max(0, self.dense - start), max(1, most // each))
        end, left = start + num_dense, most - num_dense * each
        num_state = 0
        if end >= self.dense:
            num_state = max(0, min(self.end - end, left if num_dense else max(1, left)))
        return end + num_state, num_dense * each + num_state
