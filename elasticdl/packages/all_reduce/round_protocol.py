"""Decides a worker's part in the rounds of a world: its offers, and what is settled.

Events go in and decisions come out. There is no thread, no clock and no ring here, so a test can
make every order of events. `RingMember` is the thread around it, and its lock guards this.

A rank that holds a training lease is **busy**: the others wait for it. A rank that is not busy has
nothing to offer, and the others go on without it. An update is **settled** when the next round
begins: then all ranks have made it.
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
from elasticdl.packages.all_reduce.collective.pending import PendingSums
from elasticdl.packages.all_reduce.collective.rounds import (
    Marks,
    Offer,
    OfferedMinibatch,
    OfferOutcome,
    admit,
)

_IDLE_ROUNDS = 10  # rounds without any minibatch, after which it is looked whether more will come

Pair = tuple[Float32, Float32]  # a dense gradient, and the change of the state


class ParameterProgress(Protocol):
    """The progress of this worker's parameters; `Replica` documents the fields."""

    lineage: int
    position: int
    version: int
    marks: Marks
    pending: PendingSums
    updates: UpdateOrder | None
    global_batch_size: int | None

    @property
    def is_staging(self) -> bool:
        """Return whether the parameters are not complete yet, because they are being given."""
        ...

    def is_due(self, task_id: int) -> bool:
        """Return whether a task is part of the update that is being made."""
        ...

    def has(self, task_id: int, end: int) -> bool:
        """Return whether the parameters have the first `end` minibatches of a task."""
        ...


@dataclass(slots=True)
class Proposal:
    """A minibatch that is to be counted, and its verdict.

    lineage, version: Those of the parameters on which the gradient was computed.
    """

    minibatch: OfferedMinibatch
    learning_rate: float
    values: Pair | None  # None if skipped
    lineage: int
    version: int
    verdict: OfferOutcome | None = None


@dataclass(frozen=True, slots=True)
class SettledCall:
    """A call that is due when a round begins after this position of this lineage is applied."""

    lineage: int
    position: int
    num_rounds: int
    task_id: int
    end: int
    tell: Callable[[bool], None]


class NextStep(Enum):
    """The next step after a round in which no rank had a minibatch."""

    NOTHING = "another round"
    STANDSTILL = "those who wait for their turn give back what they hold"
    FLUSH = "an update is made of what is pending"


@dataclass(frozen=True, slots=True)
class Round:
    """The offers of one round with their verdicts, by rank, and the next step if none counts."""

    offers: Sequence[Offer]
    verdicts: Sequence[OfferOutcome]
    next_step: NextStep

    @property
    def counted(self) -> list[Offer]:
        """Return the offers that count."""
        both = zip(self.offers, self.verdicts, strict=True)
        return [offer for offer, verdict in both if verdict is OfferOutcome.COUNTED]


class RoundProtocol:
    """The knowledge of one worker about the rounds.

    num_rounds: The number of rounds that have begun.
    num_standstills: How many times there were many idle rounds, one after the other.
    synced_world: The last world in which this worker got the parameters of all; 0: none.
    generation: The generation of the parameters, as the master counts restorations.
    """

    def __init__(self, progress: ParameterProgress) -> None:
        """Begin without parameters."""
        self._progress = progress
        self._busy: set[tuple[int, int]] = set()
        self._proposal: Proposal | None = None
        self._calls: deque[SettledCall] = deque()
        self._settled_lineage, self._settled = 0, -1  # where all ranks are or were, none pending
        self._num_idle = 0
        self._is_out_of_work = False
        self._ended_world = 0
        self.num_rounds = self.num_standstills = self.synced_world = self.generation = 0
        self.is_leaving = self.is_resting = False

    # --- events of this worker -------------------------------------------------------------------

    def begin_lease(self, task_id: int, lease: int) -> int:
        """Make the others wait for this worker; return the minibatch at which the lease begins."""
        if not self.is_resting:
            self._busy.add((task_id, lease))
        return self._progress.marks.next_index(task_id)

    def end_lease(self, task_id: int, lease: int) -> None:
        """End a lease; the others do not wait for it any more."""
        self._busy.discard((task_id, lease))

    def rest(self) -> None:
        """Offer the minibatches that are handed in, but make no other rank wait for this one."""
        self.is_resting = True
        self._busy.clear()

    def out_of_work(self, is_out_of_work: bool) -> None:
        """Note whether the master has no task for this worker."""
        self._is_out_of_work = is_out_of_work

    def hand_in(self, proposal: Proposal) -> None:
        """Take a minibatch that is to be counted."""
        assert self._proposal is None, "one thread hands in"
        self._proposal = proposal

    def take_back(self) -> None:
        """Forget the proposal: no thread waits for its verdict any more."""
        self._proposal = None

    def when_settled(self, task_id: int, end: int, tell: Callable[[bool], None]) -> None:
        """Keep a function that is called when all that was counted so far is settled."""
        at = self._progress
        self._calls.append(
            SettledCall(at.lineage, at.position, self.num_rounds, task_id, end, tell)
        )

    def end_call(self) -> None:
        """Note that the first call has returned."""
        self._calls.popleft()

    def world_ends(self, world_id: int) -> None:
        """Note that the master ends a world at its next step."""
        self._ended_world = world_id

    # --- questions -------------------------------------------------------------------------------

    @property
    def has_parameters(self) -> bool:
        """Return whether this worker has had the parameters of some world."""
        return self.synced_world > 0

    @property
    def has_calls(self) -> bool:
        """Return whether a call has not returned yet."""
        return bool(self._calls)

    @property
    def is_busy(self) -> bool:
        """Return whether the others wait for this worker, for a task of the next update."""
        return any(self._progress.is_due(task_id) for task_id, _ in self._busy)

    @property
    def has_handing(self) -> bool:
        """Return whether a minibatch was handed in."""
        return self._proposal is not None

    def is_over(self, world_id: int) -> bool:
        """Return whether this worker asks all to leave a world."""
        return self.is_leaving or self._ended_world == world_id

    def is_outdated(self, proposal: Proposal) -> bool:
        """Return whether a gradient must be computed again; False if it was counted before."""
        at = self._progress
        if proposal.values is None or not self.has_parameters:
            return False
        if proposal.minibatch.index != at.marks.next_index(proposal.minibatch.task_id):
            return False  # the next round says what is wrong with it
        return (at.lineage, at.version) != (proposal.lineage, proposal.version)

    def offered(self) -> Proposal | None:
        """Return the proposal, unless it has its verdict or must be computed again."""
        proposal = self._proposal
        if proposal is None or proposal.verdict is not None or self.is_outdated(proposal):
            return None
        return proposal if self._progress.is_due(proposal.minibatch.task_id) else None

    def is_call_due(self, is_out: bool) -> bool:
        """Return whether the first call can be made.

        Args:
            is_out: This worker does not take part any more, so nothing more will be settled.
        """
        if not self._calls or is_out:
            return bool(self._calls)
        first = self._calls[0]
        if self.is_resting and self._is_incomplete and self._num_idle >= _IDLE_ROUNDS:
            return True  # nobody completes the update for now: what it lacks is given back
        has_settled = self._settled >= first.position or self._settled_lineage > first.lineage
        return self.num_rounds > first.num_rounds and has_settled

    def next_call(self) -> tuple[Callable[[bool], None], bool]:
        """Return the first call, and whether the parameters have its minibatches.

        The parameters may have been replaced by others, which lack what was counted last.
        """
        first = self._calls[0]
        return first.tell, self._progress.has(first.task_id, first.end)

    @property
    def _is_incomplete(self) -> bool:
        return bool(self._progress.updates or self._progress.pending.minibatches)

    # --- events of a world -----------------------------------------------------------------------

    def begin_world(self) -> None:
        """Begin a world: all ranks begin alike. The tasks of a lost rank may be free now."""
        self._num_idle = 0
        self._is_out_of_work = False

    def got_parameters(self, world_id: int, generation: int) -> None:
        """Note that this worker has the parameters of all."""
        self.synced_world, self.generation = world_id, generation

    def offer(self, proposal: Proposal | None, world_id: int, piece: tuple[int, bool]) -> Offer:
        """Return the offer of this rank for the next round.

        Args:
            proposal: The proposal that `offered` returned.
            world_id: The world.
            piece: How many bytes of the parameters this rank gives at the end of the round, and
                whether they are the last.
        """
        num_bytes, is_last_piece = piece
        return Offer(
            self._progress.position,
            None if proposal is None else proposal.minibatch,
            0.0 if proposal is None else proposal.learning_rate,
            self.is_over(world_id),
            num_bytes,
            is_last_piece,
            lacks_parameters=self._progress.is_staging,
            is_out_of_work=self._is_out_of_work,
        )

    def begin_round(self, offers: Sequence[Offer], world_id: int) -> Round | None:
        """Decide what counts. All offers are known, so all ranks have made the updates before.

        Returns:
            None: a rank asks all to leave.

        Raises:
            ElasticdlError: The ranks disagree about how far they are.
        """
        at = self._progress
        # Pending minibatches would be lost with this world, so they are not settled before they are
        # applied.
        if not at.pending.minibatches:
            self._settled, self._settled_lineage = at.position, at.lineage
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
        return Round(offers, verdicts, self._next_step(offers, has_counted))

    def end_round(self, made: Round, proposal: Proposal | None, rank: int) -> None:
        """Give the offered minibatch its verdict, after the round was counted."""
        verdict = made.verdicts[rank]
        # `LATER` is no verdict: the minibatch is offered again in the next round.
        if proposal is not None and verdict is not OfferOutcome.LATER:
            proposal.verdict = verdict

    def _next_step(self, offers: Sequence[Offer], has_counted: bool) -> NextStep:
        """Decide what follows a round, from what all ranks know.

        After some rounds without a minibatch, an update is made of what is pending, if the master
        has no task for any rank: the master may be away or slow.

        In a deterministic job an update waits for its own tasks. Workers that hold other tasks give
        them back, so that they can get the tasks that come first.
        """
        if has_counted:
            self._num_idle = 0
            return NextStep.NOTHING
        if any(offer.lacks_parameters for offer in offers):
            return NextStep.NOTHING
        self._num_idle += 1
        if self._num_idle % _IDLE_ROUNDS:
            return NextStep.NOTHING
        if self._progress.updates is not None:
            self.num_standstills += 1
            return NextStep.STANDSTILL
        if self._progress.pending.minibatches and all(offer.is_out_of_work for offer in offers):
            return NextStep.FLUSH
        return NextStep.NOTHING
