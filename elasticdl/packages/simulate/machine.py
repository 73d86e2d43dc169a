"""An agenda of what happens when, and a machine whose cores are shared by those that run."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Resume: TypeAlias = Callable[[], None]
Effect: TypeAlias = Callable[["Actor", Resume], None]
"""What a coroutine yields: is called with whose it is, and with what goes on with it."""
Coroutine: TypeAlias = Generator[Effect, None, None]

_ROUNDING = 1e-9  # seconds of work; times of long runs have fewer digits


@dataclass(eq=False)
class Actor:
    """Something that runs until it is over, as a process does; `over`: nothing of it goes on."""

    group: Hashable
    over: bool = False


class Agenda:
    """Simulated time, and what happens in it; things at the same time happen in the order given."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Have something happen at a time."""
        self._count += 1
        heapq.heappush(self._waiting, (time, self._count, action))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let things happen until `is_over`, or until there is nothing more."""
        while self._waiting and not is_over():
            self.now, _, action = heapq.heappop(self._waiting)
            action()

    def sleep_until(self, time: float) -> Effect:
        """Return an effect: go on at a time."""
        return lambda actor, resume: self.at(max(time, self.now), resume)

    def start(self, actor: Actor, coroutine: Coroutine) -> None:
        """Run a coroutine as a part of an actor."""

        def resume() -> None:
            if actor.over:
                coroutine.close()
                return
            try:
                effect = next(coroutine)
            except StopIteration:
                return
            effect(actor, resume)

        self.at(self.now, resume)


@dataclass(eq=False)
class _Work:
    actor: Actor
    weight: float
    left: float
    resume: Resume
    rate: float = 0.0


class Machine:
    """Cores that those who run share: equally between processes, by weight between threads of one.

    That is how Linux shares them between sessions, or containers.
    """

    def __init__(self, agenda: Agenda, cores: float, speed: float = 1.0) -> None:
        """Begin with nobody running.

        Args:
            agenda: Where time comes from.
            cores: May be a part of one: what others leave.
            speed: Seconds of work that a core does in a second.
        """
        self._agenda = agenda
        self._cores = cores
        self._speed = speed
        self._running: list[_Work] = []
        self._since = 0.0
        self._version = 0
        self.worked = 0.0

    def work(self, seconds: float, weight: float = 1.0) -> Effect:
        """Return an effect: work for so many seconds of a core, then go on."""

        def begin(actor: Actor, resume: Resume) -> None:
            self._advance()
            self._running.append(_Work(actor, weight, seconds, resume))
            self._share()

        return begin

    def end(self, actor: Actor) -> None:
        """Let nothing of an actor run any more."""
        self._advance()
        self._running = [work for work in self._running if work.actor is not actor]
        self._share()

    def _advance(self) -> None:
        passed = self._agenda.now - self._since
        self._since = self._agenda.now
        for work in self._running:
            done = passed * work.rate
            work.left -= done
            self.worked += done

    def _share(self) -> None:
        """Say how fast each one runs, and when the first is through."""
        groups: defaultdict[Hashable, list[_Work]] = defaultdict(list)
        for work in self._running:
            groups[work.actor.group].append(work)
        weights = {name: [work.weight for work in works] for name, works in groups.items()}
        for name, rates in rates_of(weights, self._cores).items():
            for work, rate in zip(groups[name], rates, strict=True):
                work.rate = rate * self._speed
        self._version += 1
        if self._running:
            version = self._version
            soonest = min(work.left / work.rate for work in self._running)
            self._agenda.at(self._agenda.now + max(soonest, 0.0), lambda: self._tick(version))

    def _tick(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        through = [work for work in self._running if work.left <= _ROUNDING]
        self._running = [work for work in self._running if work.left > _ROUNDING]
        self._share()
        for work in through:
            self._agenda.at(self._agenda.now, work.resume)


def rates_of(
    weights: Mapping[Hashable, Sequence[float]], cores: float
) -> dict[Hashable, list[float]]:
    """Return which part of a core each thread gets.

    Args:
        weights: Of the threads that run, by process.
        cores: Of the machine.
    """
    most = {name: min(float(len(of)), cores) for name, of in weights.items()}
    of_groups = _filled(list(most.values()), [1.0] * len(most), cores)
    return {
        name: _filled([1.0] * len(of), of, share)
        for (name, of), share in zip(weights.items(), of_groups, strict=True)
    }


def _filled(most: Sequence[float], weights: Sequence[float], amount: float) -> list[float]:
    """Share an amount by weights, to each no more than its most; what is left goes to others."""
    if sum(most) <= amount:
        return list(most)
    found = [0.0] * len(most)
    open_ = sorted(range(len(most)), key=lambda at: most[at] / weights[at])
    left, weight = amount, sum(weights)
    for at in open_:
        found[at] = min(most[at], left * weights[at] / weight)
        left -= found[at]
        weight -= weights[at]
    return found
