"""Gives the ranks of a new world the parameters of rank 0, before the first round or during rounds.

A rank that joins with a large model takes part at once, without weight. It makes the updates of
all. At the end of each round, rank 0 gives it a piece of its store (`staging.py`). With the last
piece it has the parameters.
"""

from __future__ import annotations

from elasticdl.job import Seat
from elasticdl.packages.all_reduce.collective import Group
from elasticdl.packages.all_reduce.collective.rounds import Offer
from elasticdl.packages.all_reduce.collective.transfer import (
    TransferWay,
    piece_bytes,
    way_of_giving,
)
from elasticdl.packages.all_reduce.replica import Replica
from elasticdl.packages.all_reduce.staging import Giver, StagedParameters


class ParameterTransfer:
    """One rank's part in the transfer; used by the thread of the ring."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._giver: Giver | None = None
        self._stage: StagedParameters | None = None

    def begin(self, group: Group, seat: Seat, has_trained: bool) -> bool:
        """Begin a world; return whether this rank has the parameters.

        Args:
            group: The ranks.
            seat: The seat of this rank.
            has_trained: Whether this process has been in a round.

        Raises:
            RingError: A rank is lost.
            CheckpointError: The parameters cannot be written or read.
            ModelMismatchError: This rank has another model than rank 0.
        """
        replica = self._replica
        if not any(seat.are_behind):
            return True
        offers = group.exchange(Offer(replica.position, is_last_piece=not has_trained))
        positions = [offer.position for offer in offers]
        is_first, is_behind = seat.rank == 0, seat.are_behind[seat.rank]
        way = way_of_giving(
            seat.are_behind,
            positions,
            replica.num_numbers,
            has_trained=not offers[0].is_last_piece,
            is_deterministic=replica.updates is not None,
        )
        match way:
            case TransferWay.AT_ONCE:
                data = group.give(replica.dump() if is_first else None, is_behind)
                if is_behind:
                    replica.load(data)
            case TransferWay.BESIDE:
                outline = group.give(replica.outline() if is_first else None, is_behind)
                if is_first:
                    self._giver = replica.giver()
                if is_behind:
                    self._stage = replica.begin_stage(outline)
        return self._stage is None

    def next_piece(self) -> tuple[int, bool]:
        """Return the bytes given at the end of the next round, and whether they are the last."""
        if self._giver is None:
            return 0, False
        return self._giver.next_piece(piece_bytes(self._replica.num_numbers))

    def end_round(self, group: Group, offered: Offer) -> bool:
        """Have a piece given; return whether this rank has the parameters now.

        Args:
            group: The ranks, which have all made this round's update.
            offered: The offer of rank 0 in this round.

        Raises:
            RingError: A rank is lost.
        """
        giver, stage, num_bytes = self._giver, self._stage, offered.num_piece_bytes
        # All ranks pass the piece on, also those that neither give nor need it: it travels around
        # the ring.
        if num_bytes:
            group.give_piece(
                None if giver is None else giver.piece(),
                num_bytes,
                None if stage is None else stage.room_for(num_bytes),
            )
        if giver is not None and offered.is_last_piece:
            self._giver = None
        if stage is not None and num_bytes:
            stage.take(num_bytes, offered.is_last_piece)
        if stage is None or not self._replica.end_stage():
            return False
        self._stage = None
        return True

    def close(self) -> None:
        """Note that the world has ended; a rank that still lacks a piece starts again with none."""
        self._giver = self._stage = None
        self._replica.drop_stage()
