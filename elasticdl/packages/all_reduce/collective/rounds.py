"""Decides in one round which minibatches make the next update; without sockets or a clock.

In each round every rank makes an **offer**: the minibatch whose gradient it has in hand, or none.
All ranks see all offers, and decide alike by the **marks**: how far each task has come in the
updates so far, and under which lease. So a minibatch is counted once, whoever offers it, and a
worker whose lease is over is told so by all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class OfferedMinibatch:
    """A minibatch that a rank offers, and its weight.

    is_skipped: The minibatch is counted without a gradient.
    ends_task: The minibatch is the last one of its task; set in deterministic jobs alone.
    """

    task_id: int
    lease: int
    index: int
    num_records: int
    is_skipped: bool = False
    ends_task: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """The offer of a rank to the others at the beginning of a round.

    position: The number of rounds that its parameters contain. It must be the same on all ranks.
        Before the first round of a world, -1 says that the rank has no parameters.
    minibatch: The minibatch whose gradient the rank has. None: it has no gradient, and weighs
        nothing.
    is_last: The rank asks all to leave this world now, before anything is reduced.
    num_piece_bytes, is_last_piece: The part of the parameters that rank 0 gives at the end of this
        round (`collective/transfer.py`). Before the first round, `is_last_piece` says that rank 0
        gives all at once, since it has not trained yet.
    lacks_parameters: The rank is being given the parameters. It may have a task, and offers nothing
        yet.
    is_out_of_work: The master has no task for the rank, and has told it so in this world.
    """

    position: int
    minibatch: OfferedMinibatch | None = None
    learning_rate: float = 0.0
    is_last: bool = False
    num_piece_bytes: int = 0
    is_last_piece: bool = False
    lacks_parameters: bool = False
    is_out_of_work: bool = False


class OfferOutcome(Enum):
    """The decision about a rank's offer."""

    NONE = "it offered nothing"
    COUNTED = "it is part of this update"
    DONE = "it was part of an update before"
    STALE = "somebody else has the task"
    GAP = "minibatches before it are missing"
    LATER = "the update has enough records without it"


@dataclass(slots=True)
class Mark:
    """The progress of a task: the newest lease that counted, and the next minibatch."""

    lease: int = 0
    next_index: int = 0


def admit(
    offers: Sequence[Offer], verdicts: Sequence[OfferOutcome], num_records: int, wanted: int | None
) -> list[OfferOutcome]:
    """Return the verdicts, with `LATER` for the offers that the update has no room for.

    Ranks come in their order, until there are as many records as wanted.

    Args:
        offers: The offers of all ranks.
        verdicts: The verdicts of `Marks.judge`.
        num_records: The records that the update has from earlier rounds.
        wanted: The records that the update shall have; None: all that are offered.
    """
    found = list(verdicts)
    for rank, (offer, verdict) in enumerate(zip(offers, verdicts, strict=True)):
        if verdict is not OfferOutcome.COUNTED or wanted is None:
            continue
        assert offer.minibatch is not None
        if num_records >= wanted and not offer.minibatch.is_skipped:
            found[rank] = OfferOutcome.LATER
        num_records += offer.minibatch.num_records
    return found


class Marks:
    """The marks of all tasks; equal on all ranks that have made the same updates."""

    def __init__(self, marks: dict[int, Mark] | None = None) -> None:
        self._marks = {} if marks is None else marks

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Marks:
        """Return marks from (task, lease, next index) of each task."""
        return cls({task: Mark(lease, next_index) for task, lease, next_index in rows})

    def rows(self) -> list[list[int]]:
        """Return (task, lease, next index) of each task."""
        return [[task, mark.lease, mark.next_index] for task, mark in self._marks.items()]

    def next_index(self, task_id: int) -> int:
        """Return the minibatch of a task that comes next."""
        mark = self._marks.get(task_id)
        return 0 if mark is None else mark.next_index

    def judge(self, offers: Sequence[Offer]) -> list[OfferOutcome]:
        """Return the outcome of each rank's offer; change nothing."""
        # Two ranks may offer the same task: its lease has passed to another worker, and the old
        # worker does not know yet. Only the newest lease counts, so all ranks refuse the same
        # offer.
        newest: dict[int, int] = {}
        for offer in offers:
            if offer.minibatch is not None:
                task = offer.minibatch.task_id
                lease = max(offer.minibatch.lease, self._marks.get(task, _NEW).lease)
                newest[task] = max(newest.get(task, 0), lease)
        verdicts = []
        counted: set[int] = set()
        for offer in offers:
            verdict = self._judge(offer.minibatch, newest, counted)
            if verdict is OfferOutcome.COUNTED:
                assert offer.minibatch is not None
                counted.add(offer.minibatch.task_id)
            verdicts.append(verdict)
        return verdicts

    def _judge(
        self, minibatch: OfferedMinibatch | None, newest: dict[int, int], counted: set[int]
    ) -> OfferOutcome:
        if minibatch is None:
            return OfferOutcome.NONE
        next_index = self.next_index(minibatch.task_id)
        if minibatch.lease < newest[minibatch.task_id]:
            return OfferOutcome.STALE
        if minibatch.index < next_index or minibatch.task_id in counted:
            return OfferOutcome.DONE
        return OfferOutcome.GAP if minibatch.index > next_index else OfferOutcome.COUNTED

    def count(self, minibatch: OfferedMinibatch) -> None:
        """Note a minibatch that was counted."""
        mark = self._marks.setdefault(minibatch.task_id, Mark())
        mark.lease, mark.next_index = minibatch.lease, minibatch.index + 1


_NEW = Mark()
# flags, task, lease, index, records, bytes of a piece, learning rate, position
_OFFER = struct.Struct("<IQIIIIdq")
_HAS, _SKIPPED, _LAST, _ENDS_TASK, _LAST_PIECE, _LACKS, _OUT_OF_WORK = 1, 2, 4, 8, 16, 32, 64

OFFER_BYTES = _OFFER.size


def pack(offer: Offer) -> bytes:
    """Return an offer as bytes; the length is always the same."""
    minibatch = offer.minibatch or OfferedMinibatch(0, 0, 0, 0)
    flags = _HAS if offer.minibatch is not None else 0
    flags |= _SKIPPED if minibatch.is_skipped else 0
    flags |= _LAST if offer.is_last else 0
    flags |= _ENDS_TASK if minibatch.ends_task else 0
    flags |= _LAST_PIECE if offer.is_last_piece else 0
    flags |= _LACKS if offer.lacks_parameters else 0
    flags |= _OUT_OF_WORK if offer.is_out_of_work else 0
    return _OFFER.pack(
        flags,
        minibatch.task_id,
        minibatch.lease,
        minibatch.index,
        minibatch.num_records,
        offer.num_piece_bytes,
        offer.learning_rate,
        offer.position,
    )


def unpack(data: bytes) -> Offer:
    """Return the offer that was packed."""
    flags, task_id, lease, index, num_records, num_bytes, learning_rate, position = _OFFER.unpack(
        data
    )
    minibatch = OfferedMinibatch(
        task_id, lease, index, num_records, bool(flags & _SKIPPED), bool(flags & _ENDS_TASK)
    )
    has = bool(flags & _HAS)
    return Offer(
        position,
        minibatch if has else None,
        learning_rate,
        bool(flags & _LAST),
        num_bytes,
        bool(flags & _LAST_PIECE),
        bool(flags & _LACKS),
        bool(flags & _OUT_OF_WORK),
    )
