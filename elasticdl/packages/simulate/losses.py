"""Simulates hours of a job that loses processes, from its speed with each number of workers."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from elasticdl.packages.simulate.machine import Agenda


@dataclass(frozen=True)
class Hazards:
    """The rates and costs of losses.

    worker_rate, ps_rate: The losses of one process in an hour.
    notice: The seconds until the master knows of a loss.
    restart: The seconds until a successor trains, or serves.
    recovery_seconds: A lost ps replica lacks the training since its last checkpoint, which is at
        most this old; 0 with a redo log.
    minibatches_lost: The minibatches that a lost worker had computed, or was computing, and not
        pushed.
    checkpoint_every, checkpoint_takes, checkpoint_slows: Seconds, seconds, and a share from 0 to 1.
    """

    worker_rate: float = 0.0
    ps_rate: float = 0.0
    notice: float = 2.0
    restart: float = 30.0
    recovery_seconds: float = 60.0
    minibatches_lost: float = 3.0
    checkpoint_every: float = 600.0
    checkpoint_takes: float = 10.0
    checkpoint_slows: float = 0.1


@dataclass
class Balance:
    """The records of a time: those that counted, and the losses by their causes.

    possible: The records without any loss.
    counted: The records that counted, each once.
    away: Lost because workers were not replaced yet.
    stalled: Lost because a ps replica was not replaced yet.
    repeated: Records that were trained again.
    checkpoints: Lost because checkpoints slowed training down.
    """

    seconds: float
    possible: float
    counted: float = 0.0
    away: float = 0.0
    stalled: float = 0.0
    repeated: float = 0.0
    checkpoints: float = 0.0
    num_worker_losses: int = 0
    num_ps_losses: int = 0

    @property
    def goodput(self) -> float:
        """The share of the possible records that counted."""
        return self.counted / self.possible


class _Hours:
    def __init__(
        self, hazards: Hazards, speed: Callable[[int], float], workers: int, ps: int, seed: int
    ) -> None:
        self._hazards, self._speed = hazards, speed
        self._workers, self._ps = workers, ps
        self._random = random.Random(seed)
        self._agenda = Agenda()
        self._alive, self._num_down, self._is_writing = workers, 0, False
        self._since = 0.0
        self._again = 0.0  # records that are to be trained a second time

    def run(self, seconds: float, minibatch_size: int) -> Balance:
        self._minibatch_size = minibatch_size
        self.balance = Balance(seconds, self._speed(self._workers) * seconds)
        self._next(self._workers * self._hazards.worker_rate, self._lose_worker)
        self._next(self._ps * self._hazards.ps_rate, self._lose_replica)
        if self._hazards.checkpoint_takes > 0 and self._hazards.checkpoint_slows > 0:
            self._agenda.at(self._hazards.checkpoint_every, self._begin_checkpoint)
        self._agenda.at(seconds, lambda: None)
        self._agenda.run(lambda: self._agenda.now >= seconds)
        self._pass()
        return self.balance

    def _next(self, losses_an_hour: float, loss: Callable[[], None]) -> None:
        if losses_an_hour > 0:
            wait = self._random.expovariate(losses_an_hour / 3600)
            self._agenda.at(self._agenda.now + wait, loss)

    def _pass(self) -> None:
        """Account for the time since the last event."""
        passed, balance = self._agenda.now - self._since, self.balance
        self._since = self._agenda.now
        possible = self._speed(self._workers) * passed
        # Every minibatch needs every ps replica, so nothing is trained while one is away.
        if self._num_down:
            balance.stalled += possible
            return
        reached = self._speed(self._alive) * passed
        balance.away += possible - reached
        if self._is_writing:
            slower = reached * self._hazards.checkpoint_slows
            balance.checkpoints += slower
            reached -= slower
        repeated = min(reached, self._again)
        self._again -= repeated
        balance.repeated += repeated
        balance.counted += reached - repeated

    def _lose_worker(self) -> None:
        self._pass()
        self._next(self._workers * self._hazards.worker_rate, self._lose_worker)
        # No worker is left to be lost; the next loss is drawn already.
        if not self._alive:
            return
        self._alive -= 1
        self.balance.num_worker_losses += 1
        self._again += self._hazards.minibatches_lost * self._minibatch_size
        back = self._agenda.now + self._hazards.notice + self._hazards.restart

        def replaced() -> None:
            self._pass()
            self._alive += 1

        self._agenda.at(back, replaced)

    def _lose_replica(self) -> None:
        self._pass()
        self._next(self._ps * self._hazards.ps_rate, self._lose_replica)
        self._num_down += 1
        self.balance.num_ps_losses += 1
        age = self._random.uniform(0.0, self._hazards.recovery_seconds)
        # The replica lacks what all workers trained since its checkpoint, at a random moment before
        # the loss.
        self._again += age * self._speed(self._workers)
        back = self._agenda.now + self._hazards.notice + self._hazards.restart

        def restored() -> None:
            self._pass()
            self._num_down -= 1

        self._agenda.at(back, restored)

    def _begin_checkpoint(self) -> None:
        self._pass()
        self._is_writing = True
        now, hazards = self._agenda.now, self._hazards

        def written() -> None:
            self._pass()
            self._is_writing = False

        self._agenda.at(now + hazards.checkpoint_takes, written)
        longest = max(hazards.checkpoint_every, hazards.checkpoint_takes)
        self._agenda.at(now + longest, self._begin_checkpoint)


def hours(
    hazards: Hazards,
    speed: Callable[[int], float],
    workers: int,
    ps: int,
    minibatch_size: int,
    seconds: float = 24 * 3600.0,
    seed: int = 0,
) -> Balance:
    """Simulate a job for a time.

    Args:
        hazards: The rates and costs of losses.
        speed: Returns records a second for a number of workers.
        workers: The workers of the whole job.
        ps: The replicas of the whole job.
        minibatch_size: The records of a minibatch.
        seconds: The simulated time.
        seed: The seed for the times of losses.
    """
    return _Hours(hazards, speed, workers, ps, seed).run(seconds, minibatch_size)
