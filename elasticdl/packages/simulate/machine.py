"""An agenda of simulated events, and a machine whose cores the running processes share."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Resume: TypeAlias = Callable[[], None]
Effect: TypeAlias = Callable[["Actor", Resume], None]
"""A coroutine yields this: it is called with the coroutine's actor, and with a function that
continues it.
"""
Coroutine: TypeAlias = Generator[Effect, None, None]

_ROUNDING = 1e-9  # seconds of work; times of long runs have fewer digits


@dataclass(eq=False)
class Actor:
    """Something that runs until it is over, as a process does. `over`: no part of it continues."""

    group: Hashable
    over: bool = False


class Agenda:
    """The simulated time and its events; events at the same time keep their order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call an action at a time."""
        self._count += 1
        heapq.heappush(self._waiting, (time, self._count, action))

    def run(self, is_over: Callable[[], bool]) -> None:
        """Run events until `is_over` returns True, or until there are no more."""
        while self._waiting and not is_over():
            self.now, _, action = heapq.heappop(self._waiting)
            action()

    def sleep_until(self, time: float) -> Effect:
        """Return an effect: continue at a time."""
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
    """A machine whose cores are shared: equally between processes, by weight within a process.

    Linux shares them in this way between sessions or containers.
    """

    def __init__(self, agenda: Agenda, cores: float, speed: float = 1.0) -> None:
        """Begin with nothing running.

        Args:
            agenda: Gives the time.
            cores: May be a fraction: what other processes leave.
            speed: The seconds of work that a core does in a second.
        """
        self._agenda = agenda
        self._cores = cores
        self._speed = speed
        self._running: list[_Work] = []
        self._since = 0.0
        self._version = 0
        self.worked = 0.0

    def work(self, seconds: float, weight: float = 1.0) -> Effect:
        """Return an effect: work for some seconds of a core, then continue."""

        def begin(actor: Actor, resume: Resume) -> None:
            self._advance()
            self._running.append(_Work(actor, weight, seconds, resume))
            self._share()

        return begin

    def end(self, actor: Actor) -> None:
        """Stop all work of an actor."""
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
        """Set the rate of each work, and the time when the first ends."""
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
        # The shares have changed since this event was planned; a newer one replaces it.
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
    """Return the share of a core that each thread gets.

    Args:
        weights: The weights of the running threads, by process.
        cores: The cores of the machine.
    """
    most = {name: min(float(len(of)), cores) for name, of in weights.items()}
    of_groups = _filled(list(most.values()), [1.0] * len(most), cores)
    return {
        name: _filled([1.0] * len(of), of, share)
        for (name, of), share in zip(weights.items(), of_groups, strict=True)
    }


def _filled(most: Sequence[float], weights: Sequence[float], amount: float) -> list[float]:
    """Divide an amount by weights, with a limit for each; the rest goes to the others."""
    if sum(most) <= amount:
        return list(most)
    found = [0.0] * len(most)
    # Processes that need least come first: the others can share the rest.
    open_ = sorted(range(len(most)), key=lambda at: most[at] / weights[at])
    left, weight = amount, sum(weights)
    for at in open_:
        found[at] = min(most[at], left * weights[at] / weight)
        left -= found[at]
        weight -= weights[at]
    return found
