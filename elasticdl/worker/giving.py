"""How the ranks of a new world come to hold what rank 0 holds: before the first round, or beside.

A joiner of a large model takes part at once, and weighs nothing. At the end of each round rank 0
gives it a piece of its store, as it was at the beginning (`staging.py`). The joiner keeps the
updates meanwhile. At the end of a round in which it has caught up it has the parameters.
"""

from __future__ import annotations

from elasticdl.collective import Group
from elasticdl.collective.giving import Way, most_backlog, piece_bytes, way_of_giving
from elasticdl.collective.rounds import Offer
from elasticdl.job import Seat
from elasticdl.worker.replica import Replica
from elasticdl.worker.staging import Giver, Stage

_ALL_BYTES = 1 << 30  # of a piece, where the rest is given without regard to steps


class ParameterGiving:
    """One rank's part in it, for the thread of the ring."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._giver: Giver | None = None
        self._stage: Stage | None = None
        self._began = 0  # the version that is given, or an earlier one
        self._piece = b""

    def begin(self, group: Group, seat: Seat, has_trained: bool) -> bool:
        """Begin a world; return whether this rank has the parameters.

        Args:
            group: The ranks.
            seat: This one's.
            has_trained: Whether this process has been in a round.

        Raises:
            RingError: A rank is lost.
            CheckpointError: The parameters cannot be written or read.
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
            case Way.AT_ONCE:
                data = group.give(replica.dump() if is_first else None, is_behind)
                if is_behind:
                    replica.load(data)
            case Way.BESIDE:
                outline = group.give(replica.outline() if is_first else None, is_behind)
                if is_first:
                    self._began, self._giver = replica.version, Giver(replica.write)
                if is_behind:
                    self._stage = replica.begin_stage(outline)
        return self._stage is None

    def next_piece(self) -> tuple[int, bool]:
        """Return how many bytes are given at the end of the next round, and whether it is all.

        Raises:
            CheckpointError: The parameters could not be written.
        """
        if self._giver is None:
            return 0, False
        replica = self._replica
        # The joiner would keep too many updates: the rest is given at once.
        is_late = replica.version - self._began > most_backlog(replica.num_numbers)
        most = _ALL_BYTES if is_late else piece_bytes(replica.num_numbers)
        self._piece, is_last = self._giver.next_piece(most, waits=is_late)
        return len(self._piece), is_last

    def end_round(self, group: Group, offered: Offer) -> bool:
        """Have a piece given; return whether this rank has come to have the parameters by now.

        Args:
            group: The ranks.
            offered: By rank 0 in this round.

        Raises:
            RingError: A rank is lost.
            CheckpointError: What was given cannot be kept.
        """
        piece = b""
        if offered.num_piece_bytes:
            own = None if self._giver is None else self._piece
            piece = group.give_piece(own, offered.num_piece_bytes, self._stage is not None)
        if self._stage is not None and (piece or offered.is_last_piece):
            self._stage.take(piece, offered.is_last_piece)
        if self._giver is not None and offered.is_last_piece:
            self._stop_giving()
        if self._stage is None or not self._replica.end_stage():
            return False
        self._stage = None
        return True

    def close(self) -> None:
        """The world has ended; a joiner that lacks anything yet has nothing."""
        self._stop_giving()
        self._replica.drop_stage()
        self._stage = None

    def _stop_giving(self) -> None:
        if self._giver is not None:
            self._giver.close()
        self._giver, self._piece = None, b""
