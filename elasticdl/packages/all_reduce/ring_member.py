"""A worker's part in a world: a thread that meets, forms the ring, and reduces round after round.

Only this thread uses the ring and changes the parameters. The worker gives it a **proposal**: a
minibatch with its gradient. A proposal is kept until an update has counted it, even if the ring
breaks meanwhile.

    meet -> form -> give parameters to those who are behind -> round, round, round ... -> meet

A worker that joins with a large model is given the parameters during the rounds (`transfer.py`).
`round_protocol.py` decides; this file waits, and moves numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np

from elasticdl._core import RingListener
from elasticdl.backends.base import Float32
from elasticdl.errors import CheckpointError, ElasticdlError, RingError, UnavailableError
from elasticdl.job import Attendance, Finished, Restore, Seat, Wait
from elasticdl.packages.all_reduce.collective import Group, WorldView, form_ring
from elasticdl.packages.all_reduce.collective.rounds import Offer, OfferOutcome
from elasticdl.packages.all_reduce.replica import Replica
from elasticdl.packages.all_reduce.round_protocol import (
    NextStep,
    Pair,
    Proposal,
    Round,
    RoundProtocol,
)
from elasticdl.packages.all_reduce.transfer import ParameterTransfer
from elasticdl.runtime.ending import DaemonThread

log = logging.getLogger(__name__)

_FORM_SECONDS = 5.0
_SILENCE_SECONDS = 5.0
_IDLE_SECONDS = 0.02  # between two rounds in which nobody had anything
_FAREWELL_SECONDS = 3.0
_TRIES_AT_ONCE = 3  # to form a ring in which no round comes about; then it is tried less often
_AGAIN_SECONDS = 1.0


class Outdated(Exception):
    """A gradient was computed on parameters that are not the newest."""


class OutOfTurn(Exception):
    """The tasks of the next update are not held by the workers that wait for it."""


class OutOfWorld(Exception):
    """This worker does not take part any more."""


class RingMember:
    """The thread, and the methods by which other threads of the worker use it."""

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
            listener: Accepts the connections of other ranks.
            ring_address: The address of the listener, as the others know it.
            replica: The parameters.
            store_address: Returns the address where the parameters are served, as the master knows
                it.
        """
        self._attend = attend
        self._listener = listener
        self._ring_address = ring_address
        self._replica = replica
        self._transfer = ParameterTransfer(replica)
        self._store_address = store_address
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._due = threading.Condition(lock)  # wakes the teller alone
        self._protocol = RoundProtocol(replica)  # guarded by the lock of `_changed`
        self._seat: Seat | None = None
        self._told_world = 0
        self._missed: tuple[int, ...] = ()
        self._num_in_vain = 0  # worlds without a round, one after the other
        self._is_out = False
        self._error: BaseException | None = None
        self._tell_forming: Callable[[bool], None] = lambda _: None
        self._is_forming = True
        self._made: tuple[Pair, Pair] | None = None  # see `_arrays`
        self._thread = DaemonThread(self._guarded, "ring")
        # A daemon thread is safe here: it never ends by itself, and runs no framework's code.
        self._teller = threading.Thread(target=self._tell, name="settled", daemon=True)

    def start(self) -> None:
        """Go to the rendezvous; the model has been declared."""
        self._arrays()  # here nobody waits yet
        self._thread.start()
        self._teller.start()

    # --- for other threads -----------------------------------------------------------------------

    def begin(self, task_id: int, lease: int) -> int:
        """Make the others wait for this worker; return the minibatch at which the lease begins."""
        with self._changed:
            self._wait(lambda: self._protocol.has_parameters)
            next_index = self._protocol.begin_lease(task_id, lease)
            self._changed.notify_all()
            return next_index

    def end(self, task_id: int, lease: int) -> None:
        """End a lease; the others do not wait for it any more."""
        with self._changed:
            self._protocol.end_lease(task_id, lease)
            self._changed.notify_all()

    def when_settled(self, task_id: int, end: int, tell: Callable[[bool], None]) -> None:
        """Call a function, from another thread, when all that was counted so far is settled.

        The function is told whether the parameters have the first `end` minibatches of a task. The
        parameters may have been replaced by others, which lack what was counted last.
        """
        with self._changed:
            self._protocol.when_settled(task_id, end, tell)
            self._wake()

    def settle(self) -> None:
        """Return when all functions have been called."""
        with self._changed:
            self._changed.wait_for(lambda: not self._protocol.has_calls or self._error is not None)

    def rest(self) -> None:
        """Offer the minibatches that are handed in, but make no other rank wait for this one."""
        with self._changed:
            self._protocol.rest()
            self._wake()

    def out_of_work(self, is_out_of_work: bool) -> None:
        """Note whether the master has no task for this worker; called after each of its answers."""
        with self._changed:
            self._protocol.out_of_work(is_out_of_work)

    def hand_in(self, proposal: Proposal) -> OfferOutcome:
        """Have a minibatch counted; return its verdict.

        Raises:
            Outdated: The gradient must be computed again. OutOfWorld: This worker does not take
                part any more.
        """
        with self._changed:
            self._protocol.hand_in(proposal)
            self._changed.notify_all()
            try:
                self._wait(
                    lambda: proposal.verdict is not None or self._protocol.is_outdated(proposal)
                )
            finally:
                self._protocol.take_back()
            if proposal.verdict is None and self._protocol.is_resting:
                raise OutOfWorld  # nobody waits for it to be computed again
            if proposal.verdict is None:
                raise Outdated
            return proposal.verdict

    def wait_for_parameters(self) -> None:
        """Return once this worker has parameters."""
        with self._changed:
            self._wait(lambda: self._protocol.has_parameters)

    def wait_for_turn(self, task_id: int) -> None:
        """Return when the update of a task is being made; only deterministic jobs wait.

        Raises:
            OutOfTurn: All workers of this job wait, so one of them must take the task that comes
                first.
        """
        with self._changed:
            protocol = self._protocol
            self._wait(lambda: protocol.has_parameters)
            # Standstills are counted from here: an earlier one has nothing to do with this task.
            began = protocol.num_standstills
            self._wait(
                lambda: (
                    self._replica.is_due(task_id)
                    or protocol.is_resting
                    or protocol.num_standstills > began
                )
            )
            if not self._replica.is_due(task_id):
                raise OutOfTurn

    def wait_for_generation(self, generation: int) -> None:
        """Return once the parameters are at least of this generation."""
        with self._changed:
            protocol = self._protocol
            self._wait(lambda: protocol.has_parameters and protocol.generation >= generation)

    def world_ends(self, world_id: int) -> None:
        """Note that the master ends a world at its next step; 0: it ends none."""
        if world_id:
            with self._changed:
                self._protocol.world_ends(world_id)
                self._changed.notify_all()

    def place(self) -> tuple[int, int] | None:
        """Return rank and size of the newest world of this worker; None before the first one."""
        seat = self._seat
        return None if seat is None else (seat.rank, len(seat.workers))

    def when_forming(self, tell: Callable[[bool], None]) -> None:
        """Call `tell` with whether there is no world: now, and whenever that changes."""
        with self._changed:
            self._tell_forming = tell
            tell(self._is_forming)

    def _forms(self, is_forming: bool) -> None:
        """Note whether there is no world, and report it; the lock is held."""
        self._is_forming = is_forming
        self._tell_forming(is_forming)

    @property
    def generation(self) -> int:
        """The generation of this worker's parameters, as the master counts restorations."""
        return self._protocol.generation

    @property
    def num_rounds(self) -> int:
        """The number of rounds that have begun."""
        return self._protocol.num_rounds

    def leave(self) -> None:
        """Take no further part; tell the others at the next round, if it comes soon."""
        with self._changed:
            self._protocol.is_leaving = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL_SECONDS)

    @property
    def error(self) -> BaseException | None:
        """The error that ended the thread, if it did not end in order."""
        return self._error

    def _wait(self, until: Callable[[], bool]) -> None:
        """Wait, holding the lock.

        Raises:
            OutOfWorld: The condition can never become true.
        """
        while not until():
            if self._error is not None:
                raise UnavailableError(f"the ring of this worker has failed: {self._error}")
            if self._is_out:
                raise OutOfWorld
            self._changed.wait()

    def _wake(self) -> None:
        """Wake all threads that wait, so that they look again; the lock is held."""
        self._changed.notify_all()
        self._wake_teller()

    def _wake_teller(self) -> None:
        if self._protocol.is_call_due(self._is_out):
            self._due.notify()

    def _tell(self) -> None:
        """Make the calls that are due, as long as this process lives."""
        try:
            while True:
                with self._changed:
                    self._due.wait_for(lambda: self._protocol.is_call_due(self._is_out))
                    tell, has_it = self._protocol.next_call()
                # The call is made without the lock: it speaks to the master, which may be slow.
                tell(has_it)
                with self._changed:
                    self._protocol.end_call()
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

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
                self._wake()

    def _run(self) -> None:
        protocol = self._protocol
        while not protocol.is_leaving and (seat := self._meet()) is not None:
            began, num_rounds = time.monotonic(), protocol.num_rounds
            try:
                self._take_part(seat, began)
            except RingError as error:
                # The rank that was lost is named to the master: it alone can tell a lost worker
                # from a slow one.
                self._missed = () if error.rank is None else (seat.workers[error.rank],)
                log.info("world %d has ended: %s", seat.world_id, error)
            with self._changed:
                self._forms(True)
            self._num_in_vain = 0 if protocol.num_rounds > num_rounds else self._num_in_vain + 1
            # Several worlds without a round mean that something is broken for longer, as a network.
            # Meeting at once would only load the master.
            if self._num_in_vain > _TRIES_AT_ONCE:
                with self._changed:
                    self._changed.wait_for(lambda: protocol.is_leaving, _AGAIN_SECONDS)

    def _meet(self) -> Seat | None:
        """Go to the rendezvous; return this worker's seat, or None if the worker is not needed."""
        num_unsound, problem = 0, ""
        while not self._protocol.is_leaving:
            said = Attendance(
                self._ring_address,
                self._store_address(),
                self._replica.position,
                self._protocol.synced_world,
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
                        # The checkpoint may be damaged. The master is told, and names an older one.
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
        world = WorldView(seat.world_id, seat.rank, seat.rings)
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
            made: Round | None = None
            while True:
                proposal = self._next(seat.world_id, made is not None and not made.counted)
                made = self._round(group, seat, proposal)
                if made is None:
                    return
        finally:
            group.close()
            self._transfer.close()

    def _begin_world(self, group: Group, seat: Seat) -> None:
        with self._changed:
            self._protocol.begin_world()
        if self._transfer.begin(group, seat, self._protocol.num_rounds > 0):
            self._has_got_parameters(seat)

    def _has_got_parameters(self, seat: Seat) -> None:
        with self._changed:
            self._protocol.got_parameters(seat.world_id, seat.generation)
            self._forms(False)
            self._changed.notify_all()

    def _next(self, world_id: int, is_idle: bool) -> Proposal | None:
        """Return the proposal for the next round; wait for one while this worker is busy."""
        protocol = self._protocol
        with self._changed:
            if is_idle and not protocol.is_busy:
                # No rank had a minibatch, so the next round need not begin at once.
                self._changed.wait_for(
                    lambda: protocol.has_handing or protocol.is_busy or protocol.is_over(world_id),
                    _IDLE_SECONDS,
                )
            self._changed.wait_for(
                lambda: (
                    protocol.offered() is not None
                    or not protocol.is_busy
                    or protocol.is_over(world_id)
                )
            )
            return protocol.offered()

    def _round(self, group: Group, seat: Seat, proposal: Proposal | None) -> Round | None:
        """Go through one round; return its decision, or None if the world is over."""
        protocol, replica = self._protocol, self._replica
        piece = self._transfer.next_piece()
        with self._changed:
            offer = protocol.offer(proposal, seat.world_id, piece)
        offers = group.exchange(offer)
        with self._changed:
            made = protocol.begin_round(offers, seat.world_id)
            self._wake_teller()  # nobody else waits for the beginning of a round
        if made is None:
            return None
        if made.counted and replica.updates is None:
            is_mine = made.verdicts[seat.rank] is OfferOutcome.COUNTED
            self._count(group, made.counted, proposal if is_mine else None)
        elif made.counted:
            values = None if proposal is None else proposal.values
            self._count_each(group, seat.rank, values, made)
        with self._changed:
            if made.next_step is NextStep.FLUSH:
                replica.position += 1
                replica.flush()
            protocol.end_round(made, proposal, seat.rank)
            # This also wakes a proposal that came during the round, and may be outdated now.
            self._wake()
        if self._transfer.end_round(group, offers[0]):
            log.info("version %d: this worker has the parameters", replica.version)
            self._has_got_parameters(seat)
        return made

    def _count(self, group: Group, counted: list[Offer], proposal: Proposal | None) -> None:
        """Reduce the gradients that count, and make the update."""
        minibatches = [offer.minibatch for offer in counted if offer.minibatch is not None]
        trained = [m for m in minibatches if not m.is_skipped]
        out = self._out()
        if trained:
            has = proposal is not None and proposal.values is not None
            values = proposal.values if proposal is not None and has else self._zeros()
            weight = proposal.minibatch.num_records if proposal is not None and has else 0
            assert values is not None
            group.mean(values, out, weight)
            rules = self._replica.rules
            if rules.has_exact:
                last = max(trained, key=lambda minibatch: (minibatch.task_id, minibatch.index))
                is_last = proposal is not None and proposal.minibatch == last
                rules.put(group.sum(rules.exact(values[1] if weight else None, is_last)), out[1])
        rates = [o.learning_rate for o in counted if o.minibatch and not o.minibatch.is_skipped]
        with self._changed:
            self._replica.count(minibatches, rates[0] if rates else None, out)

    def _count_each(
        self,
        group: Group,
        rank: int,
        own: Pair | None,
        made: Round,
    ) -> None:
        """Send each gradient that counts to all ranks, for a sum in the order of the data.

        Only one rank gives a gradient with a weight, so the mean is that gradient, bit for bit.
        """
        minibatches, values = [], []
        rate: float | None = None
        for number, (offer, verdict) in enumerate(zip(made.offers, made.verdicts, strict=True)):
            minibatch = offer.minibatch
            if verdict is not OfferOutcome.COUNTED or minibatch is None:
                continue
            out: tuple[Float32, ...] = ()
            if not minibatch.is_skipped:
                given = own if number == rank else self._zeros()
                assert given is not None
                out = tuple(np.empty_like(array) for array in given)
                group.mean(given, out, 1 if number == rank else 0)
                rate = offer.learning_rate if rate is None else rate
            minibatches.append(minibatch)
            values.append(out)
        with self._changed:
            self._replica.count_each(minibatches, rate, values)

    def _out(self) -> Pair:
        """Return the arrays into which ranks reduce; they are the same each time."""
        return self._arrays()[0]

    def _zeros(self) -> Pair:
        """Return the values that a rank without a gradient gives to a reduction."""
        return self._arrays()[1]

    def _arrays(self) -> tuple[Pair, Pair]:
        if self._made is None:
            dense, state = self._replica.first
            # The memory is written here, and not only allocated: the first write to new memory
            # takes longer.
            out = np.full_like(dense, 0.0), np.full_like(state, 0.0)
            self._made = out, (np.full_like(dense, -0.0), np.zeros_like(state))
        return self._made
