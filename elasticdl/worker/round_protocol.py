"""What a worker's part in the rounds of a world decides: what it offers, and what is settled.

Events go in and decisions come out. There is no thread, no clock and no ring here, so a test can
make every order of events. `RingMember` is the thread around it, and its lock guards this.

A rank that holds a training lease is **busy**: others wait for it. One that is not has nothing to
offer, and others go on without it. An update is **settled** when the next round begins: then all
ranks have made it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from elasticdl.backends.base import Float32
from elasticdl.data.updates import UpdateOrder
from elasticdl.errors import ElasticdlError
from elasticdl.worker.collective.pending import PendingSums
from elasticdl.worker.collective.rounds import Marks, Offer, OfferedMinibatch, OfferOutcome, admit

_IDLE_ROUNDS = 10  # rounds without any minibatch, after which it is looked whether more will come

Pair = tuple[Float32, Float32]  # a dense gradient, and the change of the state


class ParameterProgress(Protocol):
    """How far this worker's parameters have come; `Replica` is one, and tells more of each."""

    course: int
    position: int
    version: int
    marks: Marks
    pending: PendingSums
    updates: UpdateOrder | None
    global_batch_size: int | None

    @property
    def is_staging(self) -> bool:
        """Whether these parameters are not whole yet: this worker is being given them."""
        ...

    def is_due(self, task_id: int) -> bool:
        """Whether a task is part of the update that is being made."""
        ...

    def has(self, task_id: int, end: int) -> bool:
        """Whether the parameters have the first `end` minibatches of a task."""
        ...


@dataclass(slots=True)
class Handing:
    """A minibatch that is to be counted, and what became of it.

    course, version: of the parameters that its gradient was computed on.
    """

    minibatch: OfferedMinibatch
    learning_rate: float
    values: Pair | None  # None if skipped
    course: int
    version: int
    verdict: OfferOutcome | None = None


@dataclass(frozen=True, slots=True)
class SettledCall:
    """A call that is due when a round has begun after this position of this course was applied."""

    course: int
    position: int
    num_rounds: int
    task_id: int
    end: int
    tell: Callable[[bool], None]


class Rest(Enum):
    """What follows a round in which nobody had anything."""

    NOTHING = "another round"
    STANDSTILL = "those who wait for their turn give back what they hold"
    FLUSH = "an update is made of what is pending"


@dataclass(frozen=True, slots=True)
class Round:
    """What becomes of the offers of one round, by rank, and what follows it if none counts."""

    offers: Sequence[Offer]
    verdicts: Sequence[OfferOutcome]
    rest: Rest

    @property
    def counted(self) -> list[Offer]:
        """The offers that count."""
        both = zip(self.offers, self.verdicts, strict=True)
        return [offer for offer, verdict in both if verdict is OfferOutcome.COUNTED]


class RoundProtocol:
    """One worker's knowledge of the rounds.

    num_rounds: Those that have begun.
    num_standstills: How often there were many idle rounds, one after the other.
    synced_world: The last world in which this worker came to have the parameters of all; 0: none.
    generation: The generation of the parameters, as the master counts restorations.
    """

    def __init__(self, progress: ParameterProgress) -> None:
        """Begin without parameters."""
        self._progress = progress
        self._busy: set[tuple[int, int]] = set()
        self._handing: Handing | None = None
        self._calls: deque[SettledCall] = deque()
        self._settled_course, self._settled = 0, -1  # where all ranks are or were, none pending
        self._num_idle = 0
        self._is_out_of_work = False
        self._ended_world = 0
        self.num_rounds = self.num_standstills = self.synced_world = self.generation = 0
        self.is_leaving = self.is_resting = False

    # --- events of this worker -------------------------------------------------------------------

    def begin_lease(self, task_id: int, lease: int) -> int:
        """Others wait for this worker from now on; return the minibatch to begin the lease with."""
        if not self.is_resting:
            self._busy.add((task_id, lease))
        return self._progress.marks.next_index(task_id)

    def end_lease(self, task_id: int, lease: int) -> None:
        """Others do not wait for this lease any more."""
        self._busy.discard((task_id, lease))

    def rest(self) -> None:
        """Offer what is in hand, and what is handed in yet, but have nobody wait."""
        self.is_resting = True
        self._busy.clear()

    def out_of_work(self, is_out_of_work: bool) -> None:
        """The master has no task for this worker, or has one again."""
        self._is_out_of_work = is_out_of_work

    def hand_in(self, handing: Handing) -> None:
        """A minibatch is to be counted."""
        assert self._handing is None, "one thread hands in"
        self._handing = handing

    def take_back(self) -> None:
        """Nobody waits for what was handed in any more."""
        self._handing = None

    def when_settled(self, task_id: int, end: int, tell: Callable[[bool], None]) -> None:
        """Something is to be called when all that was counted so far is settled."""
        at = self._progress
        self._calls.append(SettledCall(at.course, at.position, self.num_rounds, task_id, end, tell))

    def end_call(self) -> None:
        """The first call has returned."""
        self._calls.popleft()

    def world_ends(self, world_id: int) -> None:
        """The master ends a world at its next step."""
        self._ended_world = world_id

    # --- questions -------------------------------------------------------------------------------

    @property
    def has_parameters(self) -> bool:
        """Whether this worker has had the parameters of some world."""
        return self.synced_world > 0

    @property
    def has_calls(self) -> bool:
        """Whether a call has not returned yet."""
        return bool(self._calls)

    @property
    def is_busy(self) -> bool:
        """Whether others wait for this worker: for a task of the update that is being made."""
        return any(self._progress.is_due(task_id) for task_id, _ in self._busy)

    @property
    def has_handing(self) -> bool:
        """Whether a minibatch is in hand."""
        return self._handing is not None

    def is_over(self, world_id: int) -> bool:
        """Whether this worker asks all to leave a world."""
        return self.is_leaving or self._ended_world == world_id

    def is_outdated(self, handing: Handing) -> bool:
        """Whether it must be computed again. One that was counted before needs no such question."""
        at = self._progress
        if handing.values is None or not self.has_parameters:
            return False
        if handing.minibatch.index != at.marks.next_index(handing.minibatch.task_id):
            return False  # the next round says what is wrong with it
        return (at.course, at.version) != (handing.course, handing.version)

    def offered(self) -> Handing | None:
        """Return what is in hand, unless it has got its verdict or must be computed again."""
        handing = self._handing
        if handing is None or handing.verdict is not None or self.is_outdated(handing):
            return None
        return handing if self._progress.is_due(handing.minibatch.task_id) else None

    def is_call_due(self, is_out: bool) -> bool:
        """Whether what the first call waits for is settled.

        Args:
            is_out: This worker takes part no longer, so nothing more comes.
        """
        if not self._calls or is_out:
            return bool(self._calls)
        first = self._calls[0]
        if self.is_resting and self._is_incomplete and self._num_idle >= _IDLE_ROUNDS:
            return True  # nobody completes the update for now: what it lacks is given back
        has_settled = self._settled >= first.position or self._settled_course > first.course
        return self.num_rounds > first.num_rounds and has_settled

    def next_call(self) -> tuple[Callable[[bool], None], bool]:
        """Return what to call first, and whether the parameters have the minibatches in question.

        They may have been replaced by others, which lack what was counted last.
        """
        first = self._calls[0]
        return first.tell, self._progress.has(first.task_id, first.end)

    @property
    def _is_incomplete(self) -> bool:
        return bool(self._progress.updates or self._progress.pending.minibatches)

    # --- events of a world -----------------------------------------------------------------------

    def begin_world(self) -> None:
        """All ranks begin alike. Somebody may have been lost, whose tasks are to be had."""
        self._num_idle = 0
        self._is_out_of_work = False

    def got_parameters(self, world_id: int, generation: int) -> None:
        """This worker has the parameters of all."""
        self.synced_world, self.generation = world_id, generation

    def offer(self, handing: Handing | None, world_id: int, piece: tuple[int, bool]) -> Offer:
        """Return what this rank says at the beginning of a round.

        Args:
            handing: What `offered` gave.
            world_id: The world.
            piece: How many bytes of the parameters it gives at the round's end, and whether these
                are the last.
        """
        num_bytes, is_last_piece = piece
        return Offer(
            self._progress.position,
            None if handing is None else handing.minibatch,
            0.0 if handing is None else handing.learning_rate,
            self.is_over(world_id),
            num_bytes,
            is_last_piece,
            lacks_parameters=self._progress.is_staging,
            is_out_of_work=self._is_out_of_work,
        )

    def begin_round(self, offers: Sequence[Offer], world_id: int) -> Round | None:
        """All offers are known, so all ranks have made the updates before; decide what counts.

        Returns:
            None: somebody asks all to leave.

        Raises:
            ElasticdlError: The ranks disagree about how far they are.
        """
        at = self._progress
        if not at.pending.minibatches:
            self._settled, self._settled_course = at.position, at.course
        self.num_rounds += 1
        if len({offer.position for offer in offers}) > 1:
            positions = ", ".join(str(offer.position) for offer in offers)
            raise ElasticdlError(
                f"world {world_id}: the parameters of the ranks have {positions} rounds, "
                "expected as many; this is a defect"
            )
        if any(offer.is_last for offer in offers):
            return None
        wanted = at.global_batch_size if at.updates is None else None
        verdicts = admit(offers, at.marks.judge(offers), at.pending.num_records, wanted)
        has_counted = OfferOutcome.COUNTED in verdicts
        return Round(offers, verdicts, self._rest(offers, has_counted))

    def end_round(self, made: Round, handing: Handing | None, rank: int) -> None:
        """What counts has been counted; what was offered gets its verdict."""
        verdict = made.verdicts[rank]
        if handing is not None and verdict is not OfferOutcome.LATER:
            handing.verdict = verdict

    def _rest(self, offers: Sequence[Offer], has_counted: bool) -> Rest:
        """Say what follows a round, from what all ranks know.

        After some rounds in which nobody had anything an update is made of what is pending, if the
        master has no task for anybody: it may be away, or slow. In a deterministic job an update
        waits for its own tasks, so those who hold others give them back, to be given what comes
        first.
        """
        if has_counted:
            self._num_idle = 0
            return Rest.NOTHING
        if any(offer.lacks_parameters for offer in offers):
            return Rest.NOTHING
        self._num_idle += 1
        if self._num_idle % _IDLE_ROUNDS:
            return Rest.NOTHING
        if self._progress.updates is not None:
            self.num_standstills += 1
            return Rest.STANDSTILL
        if self._progress.pending.minibatches and all(offer.is_out_of_work for offer in offers):
            return Rest.FLUSH
        return Rest.NOTHING
