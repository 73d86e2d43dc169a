"""A worker's part in a world: a thread that meets, forms the ring, and reduces round after round.

It alone touches the ring and changes the parameters. What the worker has in hand is given to it as
a **handing**: a minibatch with its gradient. A handing is kept until an update has counted it,
whatever happens to the ring meanwhile.

    meet -> form -> give parameters to those who are behind -> round, round, round ... -> meet

Joiners of a large model are given them beside the rounds (`giving.py`).

A round begins with what each rank offers (`collective/rounds.py`). A rank that holds a training
lease is **busy**: it is waited for. One that is not has nothing to offer, and others go on without
it. An update is **settled** when the next round begins: then all ranks have made it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elasticdl._core import RingListener
from elasticdl.backends.base import Float32
from elasticdl.collective import Group, World, form_ring
from elasticdl.collective.rounds import Minibatch, Offer, Verdict, admit
from elasticdl.errors import CheckpointError, ElasticdlError, RingError, UnavailableError
from elasticdl.job import Attendance, Finished, Restore, Seat, Wait
from elasticdl.worker.giving import ParameterGiving
from elasticdl.worker.replica import Replica

log = logging.getLogger(__name__)

_FORM_SECONDS = 5.0
_SILENCE_SECONDS = 5.0
_IDLE_SECONDS = 0.02  # between two rounds in which nobody had anything
_IDLE_ROUNDS = 10  # of these, after which it is looked whether anything more will come
_FAREWELL_SECONDS = 3.0
_TRIES_AT_ONCE = 3  # to form a ring in which no round comes about; then it is tried less often
_AGAIN_SECONDS = 1.0

_Pair = tuple[Float32, Float32]  # a dense gradient, and the change of the state


@dataclass(slots=True)
class Handing:
    """A minibatch that is to be counted, and what became of it. Guarded by the member's lock.

    course, version: of the parameters that its gradient was computed on.
    """

    minibatch: Minibatch
    learning_rate: float
    values: _Pair | None  # None if skipped
    course: int
    version: int
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class _ToTell:
    """What is told when a round has begun after this position of this course has been applied."""

    course: int
    position: int
    num_rounds: int
    task_id: int
    end: int
    tell: Callable[[bool], None]


class Outdated(Exception):
    """A gradient was computed on parameters that are not the newest."""


class OutOfTurn(Exception):
    """The tasks of the update that is being made are somewhere else than in a worker's hands."""


class OutOfWorld(Exception):
    """This worker takes part no longer."""


class RingMember:
    """The thread, and what others of the worker ask of it."""

    def __init__(
        self,
        attend: Callable[[Attendance], Seat | Restore | Wait | Finished],
        listener: RingListener,
        ring_address: str,
        replica: Replica,
        store_address: Callable[[], str],
    ) -> None:
        """Take no part yet.

        Args:
            attend: Goes to the rendezvous.
            listener: Where others reach this rank.
            ring_address: Its address, as the others know it.
            replica: The parameters.
            store_address: Where these are served, as the master knows it.
        """
        self._attend = attend
        self._listener = listener
        self._ring_address = ring_address
        self._replica = replica
        self._giving = ParameterGiving(replica)
        self._store_address = store_address
        self._changed = threading.Condition()
        self._busy: set[tuple[int, int]] = set()
        self._handing: Handing | None = None
        self._seat: Seat | None = None
        self._synced_world = self._told_world = 0
        self._missed: tuple[int, ...] = ()
        self._ended_world = 0
        self._num_rounds = 0  # that have begun
        self._to_tell: deque[_ToTell] = deque()
        self._settled_course = 0
        self._settled = -1  # the position that all ranks are at, or were, with nothing pending
        self._num_in_vain = 0  # worlds without a round, one after the other
        self._num_idle = 0  # rounds in which nobody had anything
        self._num_standstills = 0  # how often there were many of these, one after the other
        self._is_out = self._is_leaving = self._is_resting = self._is_out_of_work = False
        self._error: BaseException | None = None
        self._tell_forming: Callable[[bool], None] = lambda _: None
        self._is_forming = True
        self._made: tuple[_Pair, _Pair] | None = None  # see `_arrays`
        self.generation = 0
        self._thread = threading.Thread(target=self._guarded, name="ring", daemon=True)
        self._teller = threading.Thread(target=self._tell, name="settled", daemon=True)

    def start(self) -> None:
        """Go to the rendezvous; the model has been declared."""
        self._arrays()  # here nobody waits yet
        self._thread.start()
        self._teller.start()

    # --- for other threads -----------------------------------------------------------------------

    def begin(self, task_id: int, lease: int) -> int:
        """Others wait for this worker from now on; return the minibatch to begin the lease with."""
        with self._changed:
            self._wait(lambda: self._has_parameters)
            if not self._is_resting:
                self._busy.add((task_id, lease))
            self._changed.notify_all()
            return self._replica.marks.next_index(task_id)

    def end(self, task_id: int, lease: int) -> None:
        """A lease has ended; others do not wait for it any more."""
        with self._changed:
            self._busy.discard((task_id, lease))
            self._changed.notify_all()

    def when_settled(self, task_id: int, end: int, tell: Callable[[bool], None]) -> None:
        """Call a function, from another thread, when all that was counted so far is settled.

        It is told whether the parameters have the first `end` minibatches of a task. They may have
        been replaced by others, which lack what was counted last.
        """
        with self._changed:
            self._to_tell.append(
                _ToTell(
                    self._replica.course,
                    self._replica.position,
                    self._num_rounds,
                    task_id,
                    end,
                    tell,
                )
            )
            self._changed.notify_all()

    def settle(self) -> None:
        """Return when all has been told."""
        with self._changed:
            self._changed.wait_for(lambda: not self._to_tell or self._error is not None)

    def rest(self) -> None:
        """Offer what is in hand, and what is handed in yet, but have nobody wait."""
        with self._changed:
            self._is_resting = True
            self._busy.clear()
            self._changed.notify_all()

    def out_of_work(self, is_out_of_work: bool) -> None:
        """Say whether the master has no task for this worker; it is asked again and again."""
        with self._changed:
            self._is_out_of_work = is_out_of_work

    def hand_in(self, handing: Handing) -> Verdict:
        """Have a minibatch counted; returns what became of it.

        Raises:
            Outdated: Its gradient has to be computed again.
            OutOfWorld: This worker takes part no longer.
        """
        with self._changed:
            assert self._handing is None, "one thread hands in"
            self._handing = handing
            self._changed.notify_all()
            try:
                self._wait(lambda: handing.verdict is not None or self._is_outdated(handing))
            finally:
                self._handing = None
            if handing.verdict is None and self._is_resting:
                raise OutOfWorld  # nobody waits for it to be computed again
            if handing.verdict is None:
                raise Outdated
            return handing.verdict

    def wait_for_parameters(self) -> None:
        """Return once this worker has parameters."""
        with self._changed:
            self._wait(lambda: self._has_parameters)

    def wait_for_turn(self, task_id: int) -> None:
        """Return once the update is being made that a task is part of; deterministic jobs wait.

        Raises:
            OutOfTurn: All of this job wait, so somebody has to take up what comes first.
        """
        with self._changed:
            self._wait(lambda: self._has_parameters)
            began = self._num_standstills
            self._wait(
                lambda: (
                    self._replica.is_due(task_id)
                    or self._is_resting
                    or self._num_standstills > began
                )
            )
            if not self._replica.is_due(task_id):
                raise OutOfTurn

    def wait_for_generation(self, generation: int) -> None:
        """Return once the parameters are at least of this generation."""
        with self._changed:
            self._wait(lambda: self._has_parameters and self.generation >= generation)

    def world_ends(self, world_id: int) -> None:
        """The master says that a world is to end at the next step; 0: none is."""
        if world_id:
            with self._changed:
                self._ended_world = world_id
                self._changed.notify_all()

    def place(self) -> tuple[int, int] | None:
        """Return rank and size of the newest world that this worker is in; None before it."""
        seat = self._seat
        return None if seat is None else (seat.rank, len(seat.workers))

    def when_forming(self, tell: Callable[[bool], None]) -> None:
        """Call it with whether there is no world: now, and whenever that changes."""
        with self._changed:
            self._tell_forming = tell
            tell(self._is_forming)

    def _forms(self, is_forming: bool) -> None:
        """Note it; the lock is held."""
        self._is_forming = is_forming
        self._tell_forming(is_forming)

    def leave(self) -> None:
        """Take part no longer, and tell the others at the next round, if that comes soon."""
        with self._changed:
            self._is_leaving = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL_SECONDS)

    @property
    def error(self) -> BaseException | None:
        """What has ended the thread, if it did not end in order."""
        return self._error

    @property
    def _has_parameters(self) -> bool:
        return self._synced_world > 0

    def _is_outdated(self, handing: Handing) -> bool:
        """Whether it has to be computed again. Of one that was counted before nobody asks."""
        if handing.values is None or not self._has_parameters:
            return False
        if handing.minibatch.index != self._replica.marks.next_index(handing.minibatch.task_id):
            return False  # the next round says what is wrong with it
        now = (self._replica.course, self._replica.version)
        return now != (handing.course, handing.version)

    def _wait(self, until: Callable[[], bool]) -> None:
        """Wait, holding the lock.

        Raises:
            OutOfWorld: That will never be.
        """
        while not until():
            if self._error is not None:
                raise UnavailableError(f"the ring of this worker has failed: {self._error}")
            if self._is_out:
                raise OutOfWorld
            self._changed.wait()

    def _tell(self) -> None:
        """Tell what is settled, as long as this process lives."""
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(self._is_settled)
                    next_one = self._to_tell[0]
                    has_it = self._replica.has(next_one.task_id, next_one.end)
                next_one.tell(has_it)
                with self._changed:
                    self._to_tell.popleft()
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _is_settled(self) -> bool:
        """Whether the first that is to be told is settled; without a world nothing more comes."""
        if not self._to_tell or self._is_out:
            return bool(self._to_tell)
        first = self._to_tell[0]
        is_incomplete = self._replica.updates or self._replica.pending.minibatches
        if self._is_resting and is_incomplete and self._num_idle >= _IDLE_ROUNDS:
            return True  # nobody completes the update for now: what it lacks is given back
        has_settled = self._settled >= first.position or self._settled_course > first.course
        return self._num_rounds > first.num_rounds and has_settled

    # --- the thread ------------------------------------------------------------------------------

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            log.error("the ring: %s", error, exc_info=not isinstance(error, ElasticdlError))
            self._error = error
        finally:
            with self._changed:
                self._is_out = True
                self._changed.notify_all()

    def _run(self) -> None:
        while not self._is_leaving and (seat := self._meet()) is not None:
            began, num_rounds = time.monotonic(), self._num_rounds
            try:
                self._take_part(seat, began)
            except RingError as error:
                self._missed = () if error.rank is None else (seat.workers[error.rank],)
                log.info("world %d has ended: %s", seat.world_id, error)
            with self._changed:
                self._forms(True)
            self._num_in_vain = 0 if self._num_rounds > num_rounds else self._num_in_vain + 1
            if self._num_in_vain > _TRIES_AT_ONCE:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_leaving, _AGAIN_SECONDS)

    def _meet(self) -> Seat | None:
        """Go to the rendezvous; return this worker's seat, or None if it is not needed."""
        num_unsound, problem = 0, ""
        while not self._is_leaving:
            said = Attendance(
                self._ring_address,
                self._store_address(),
                self._replica.position,
                self._synced_world,
                self._told_world,
                self._missed,
                num_unsound,
                problem,
            )
            match self._attend(said):
                case Seat() as seat:
                    self._replica.order_updates(seat.tasks_per_epoch)
                    self._told_world, self._missed = seat.world_id, ()
                    return seat
                case Restore(checkpoint):
                    try:
                        self._replica.begin(checkpoint)
                    except CheckpointError as error:
                        if not checkpoint:
                            raise
                        log.warning("%s cannot be restored: %s", checkpoint, error)
                        num_unsound, problem = num_unsound + 1, str(error)
                case Finished():
                    return None
                case Wait():
                    pass
        return None

    def _take_part(self, seat: Seat, began: float) -> None:
        world = World(seat.world_id, seat.rank, seat.rings)
        ring = form_ring(
            world,
            self._listener,
            timeout_seconds=_FORM_SECONDS,
            silence_seconds=_SILENCE_SECONDS,
        )
        self._seat = seat
        group = Group(ring)
        try:
            self._begin_world(group, seat)
            log.info(
                "world %d: rank %d of %d by %s, version %d, formed in %.3f s",
                seat.world_id,
                seat.rank,
                world.size,
                ring.transport,
                self._replica.version,
                time.monotonic() - began,
            )
            is_idle = False
            while True:
                handing = self._next(seat.world_id, is_idle)
                counted = self._round(group, seat, handing)
                if counted is None:
                    return
                is_idle = counted == 0
        finally:
            group.close()
            self._giving.close()

    def _begin_world(self, group: Group, seat: Seat) -> None:
        self._num_idle = 0  # all begin a world alike
        self._is_out_of_work = False  # somebody may have been lost, whose tasks are to be had
        if self._giving.begin(group, seat, self._num_rounds > 0):
            self._has_got_parameters(seat)

    def _has_got_parameters(self, seat: Seat) -> None:
        with self._changed:
            self._synced_world = seat.world_id
            self.generation = seat.generation
            self._forms(False)
            self._changed.notify_all()

    def _next(self, world_id: int, is_idle: bool) -> Handing | None:
        """Return what to offer in the next round; waits for it while this worker is busy."""

        def is_over() -> bool:
            return self._is_leaving or self._ended_world == world_id

        with self._changed:
            if is_idle and not self._is_busy():
                # Nobody had anything: the next round need not begin at once.
                self._changed.wait_for(
                    lambda: self._handing is not None or self._is_busy() or is_over(),
                    _IDLE_SECONDS,
                )
            self._changed.wait_for(
                lambda: self._offered() is not None or not self._is_busy() or is_over()
            )
            return self._offered()

    def _offered(self) -> Handing | None:
        """Return what is in hand, unless it has got its verdict or must be computed again."""
        handing = self._handing
        if handing is None or handing.verdict is not None or self._is_outdated(handing):
            return None
        return handing if self._replica.is_due(handing.minibatch.task_id) else None

    def _is_busy(self) -> bool:
        """Whether others wait for this worker: for a task of the update that is being made."""
        return any(self._replica.is_due(task_id) for task_id, _ in self._busy)

    def _round(self, group: Group, seat: Seat, handing: Handing | None) -> int | None:
        """Go through one round; return how many minibatches counted, None if the world is over."""
        replica = self._replica
        is_last = self._is_leaving or self._ended_world == seat.world_id
        offers = group.exchange(
            Offer(
                replica.position,
                None if handing is None else handing.minibatch,
                0.0 if handing is None else handing.learning_rate,
                is_last,
                *self._giving.next_piece(),
                lacks_parameters=replica.is_staging,
                is_out_of_work=self._is_out_of_work,
            )
        )
        with self._changed:
            if not replica.pending.minibatches:
                self._settled, self._settled_course = replica.position, replica.course
            self._num_rounds += 1
            self._changed.notify_all()
        if len({offer.position for offer in offers}) > 1:
            positions = ", ".join(str(offer.position) for offer in offers)
            raise ElasticdlError(
                f"world {seat.world_id}: the parameters of the ranks have {positions} rounds, "
                "expected as many; this is a defect"
            )
        if any(offer.is_last for offer in offers):
            return None
        verdicts = admit(
            offers,
            replica.marks.judge(offers),
            replica.pending.num_records,
            replica.global_batch_size if replica.updates is None else None,
        )
        counted = [
            offer
            for offer, verdict in zip(offers, verdicts, strict=True)
            if verdict is Verdict.COUNTED
        ]
        mine = verdicts[seat.rank]
        if counted:
            self._num_idle = 0
            if replica.updates is None:
                self._count(group, counted, handing if mine is Verdict.COUNTED else None)
            else:
                values = None if handing is None else handing.values
                self._count_each(group, seat.rank, values, offers, verdicts)
        elif not any(offer.lacks_parameters for offer in offers):
            self._rest_together(all(offer.is_out_of_work for offer in offers))
        with self._changed:
            if handing is not None and mine is not Verdict.LATER:
                handing.verdict = mine
            # Also for what was handed in meanwhile: this update may have outdated it.
            self._changed.notify_all()
        if self._giving.end_round(group, offers[0]):
            log.info("version %d: this worker has the parameters", replica.version)
            self._has_got_parameters(seat)
        return len(counted)

    def _rest_together(self, are_out_of_work: bool) -> None:
        """Nobody had anything; after some such rounds an update is made of what is pending.

        Only if the master has no task for anybody: it may be away, or slow.
        In a deterministic job an update waits for its own tasks, so those who hold others give them
        back, to be given what comes first.
        """
        self._num_idle += 1
        if self._num_idle % _IDLE_ROUNDS:
            return
        with self._changed:
            if self._replica.updates is not None:
                self._num_standstills += 1
                self._changed.notify_all()
            elif self._replica.pending.minibatches and are_out_of_work:
                self._replica.position += 1
                self._replica.flush()

    def _count(self, group: Group, counted: list[Offer], handing: Handing | None) -> None:
        """Reduce the gradients that count, and make the update."""
        minibatches = [offer.minibatch for offer in counted if offer.minibatch is not None]
        trained = [m for m in minibatches if not m.is_skipped]
        out = self._out()
        if trained:
            has = handing is not None and handing.values is not None
            values = handing.values if handing is not None and has else self._zeros()
            weight = handing.minibatch.num_records if handing is not None and has else 0
            assert values is not None
            group.mean(values, out, weight)
            rules = self._replica.rules
            if rules.has_exact:
                last = max(trained, key=lambda minibatch: (minibatch.task_id, minibatch.index))
                is_last = handing is not None and handing.minibatch == last
                rules.put(group.sum(rules.exact(values[1] if weight else None, is_last)), out[1])
        rates = [o.learning_rate for o in counted if o.minibatch and not o.minibatch.is_skipped]
        with self._changed:
            self._replica.count(minibatches, rates[0] if rates else 0.0, out)

    def _count_each(
        self,
        group: Group,
        rank: int,
        own: _Pair | None,
        offers: list[Offer],
        verdicts: list[Verdict],
    ) -> None:
        """Bring each gradient that counts to all ranks, for a sum in the order of the data.

        Of each only one rank has a part in the reduction, so it comes as it is.
        """
        minibatches, values, rate = [], [], 0.0
        for number, (offer, verdict) in enumerate(zip(offers, verdicts, strict=True)):
            minibatch = offer.minibatch
            if verdict is not Verdict.COUNTED or minibatch is None:
                continue
            out: tuple[Float32, ...] = ()
            if not minibatch.is_skipped:
                given = own if number == rank else self._zeros()
                assert given is not None
                out = tuple(np.empty_like(array) for array in given)
                group.mean(given, out, 1 if number == rank else 0)
                rate = rate or offer.learning_rate
            minibatches.append(minibatch)
            values.append(out)
        with self._changed:
            self._replica.count_each(minibatches, rate, values)

    def _out(self) -> _Pair:
        """Return the arrays that are reduced into, the same ones each time."""
        return self._arrays()[0]

    def _zeros(self) -> _Pair:
        """Return what a rank gives to a reduction in which it has no part."""
        return self._arrays()[1]

    def _arrays(self) -> tuple[_Pair, _Pair]:
        if self._made is None:
            dense, state = self._replica.first
            # Written here, and not only asked for: new memory takes longer the first time.
            out = np.full_like(dense, 0.0), np.full_like(state, 0.0)
            self._made = out, (np.full_like(dense, -0.0), np.zeros_like(state))
        return self._made
