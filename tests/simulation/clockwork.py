"""Simulated time, nodes and a network: no thread, no real clock, no socket.

Everything that happens is an entry of one queue, ordered by time and then by arrival, and every
choice comes from a seed or from a list of faults. So the same seed and faults give the same run.

A node runs **coroutines**: generators that yield `Sleep` or `Call`. A call sends a message to
another node, which answers with what a function returned or raised there. Messages are numbered;
a fault names the one that it drops, delays or delivers twice.
"""

import heapq
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from elasticdl.errors import ElasticdlError

ATTEMPT_SECONDS = 1.0  # then a call is sent again
LATENCY = 0.002


@dataclass(frozen=True)
class Sleep:
    """Go on after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Call:
    """Have `work` done by the node that `find` returns then; sent again until it answers.

    find: Asked before each attempt; None: nobody is there now.
    """

    find: Callable[[], "Node | None"]
    work: Callable[["Node"], object]


@dataclass(frozen=True)
class Fault:
    """What goes wrong. `at`: a time in seconds, or the number of a message, an append or a write.

    which: Of a role's living processes, the one of this number, modulo how many there are.
    """

    kind: str
    at: float
    seconds: float = 0.0
    which: int = 0

    def __str__(self) -> str:
        """Say it as a line of a story."""
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        when = f"{self.at:.2f} s" if isinstance(self.at, float) else f"number {self.at}"
        return f"{when}: {self.kind}{lasts}" + (f" (process {self.which})" if self.which else "")


@dataclass(eq=False)
class Node:
    """A process."""

    name: str
    is_alive: bool = True
    paused_until: float = 0.0
    cut_off_until: float = 0.0
    when_dead: list[Callable[[], None]] = field(default_factory=list)

    is_centre = False
    """Those who are cut off do not reach it, nor it them; they reach each other."""

    @property
    def away_until(self) -> float:
        """Until when it does not answer the centre."""
        return max(self.paused_until, self.cut_off_until)


class Died(Exception):
    """The node that worked is dead now; nobody hears of what it did."""


class Scheduler:
    """The queue of what happens."""

    def __init__(self, seed: int, faults: list[Fault]) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.story: list[str] = []
        self._faults = {
            (fault.kind, fault.at): fault for fault in faults if isinstance(fault.at, int)
        }
        self._counts: dict[str, int] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something happen after so many seconds."""
        self._number += 1
        heapq.heappush(self._queue, (self.now + seconds, self._number, what))

    def run(self, is_over: Callable[[], bool], until: float) -> bool:
        """Let things happen until it is over; return whether it was in time."""
        while self._queue and not is_over():
            self.now, _, what = heapq.heappop(self._queue)
            if self.now > until:
                return False
            what()
        return is_over()

    def tell(self, words: str) -> None:
        """Note something for the story of the run."""
        self.story.append(f"{self.now:8.3f} {words}")

    def count(self, what: str) -> int:
        """Return how many things of a kind there were before."""
        self._counts[what] = self._counts.get(what, -1) + 1
        return self._counts[what]

    def fault(self, kind: str, number: int) -> Fault | None:
        """Return the fault that is to happen to the thing of this number."""
        found = self._faults.get((kind, number))
        if found is not None:
            self.tell(f"{kind} {number}")
        return found

    # --- nodes -----------------------------------------------------------------------------------

    def kill(self, node: Node) -> None:
        """End a node at once."""
        if node.is_alive:
            node.is_alive = False
            self.tell(f"{node.name} is dead")
            for then in node.when_dead:
                then()

    def pause(self, node: Node, seconds: float) -> None:
        """Have a node do nothing for a while, as a process that was stopped or cut off."""
        node.paused_until = max(node.paused_until, self.now + seconds)

    def on(self, node: Node, what: Callable[[], None]) -> None:
        """Have a node do something now, or when it goes on; nothing if it is dead by then."""
        if not node.is_alive:
            return
        if node.paused_until > self.now:
            self.at(node.paused_until - self.now, lambda: self.on(node, what))
            return
        try:
            what()
        except Died:
            self.kill(node)

    def spawn(self, node: Node, steps: Generator) -> None:
        """Run a coroutine on a node, as long as it lives."""
        self.on(node, lambda: self._go_on(node, steps, None, None))

    def _go_on(self, node: Node, steps: Generator, answer: object, error: Exception | None) -> None:
        try:
            wanted = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration:
            return
        except ElasticdlError as failure:
            self.tell(f"{node.name} fails: {failure}")
            raise Died from failure
        if isinstance(wanted, Sleep):
            self.at(
                wanted.seconds,
                lambda: self.on(node, lambda: self._go_on(node, steps, None, None)),
            )
        else:
            self._attempt(node, steps, wanted, [False])

    # --- the network -----------------------------------------------------------------------------

    def _attempt(self, node: Node, steps: Generator, call: Call, is_over: list[bool]) -> None:
        if is_over[0]:
            return
        target = call.find()

        def answer(value: object, error: Exception | None) -> None:
            def take() -> None:
                if not is_over[0]:
                    is_over[0] = True
                    self._go_on(node, steps, value, error)

            self.on(node, take)

        def work() -> None:
            value = error = None
            try:
                value = call.work(target)
            except Died:
                raise
            except Exception as raised:
                error = raised
            self._send(target, node, lambda: answer(value, error))

        if target is not None:
            self._send(node, target, lambda: self.on(target, work))
        again = ATTEMPT_SECONDS * self.random.uniform(1.0, 1.2)
        self.at(again, lambda: self.on(node, lambda: self._attempt(node, steps, call, is_over)))

    def _send(self, sender: Node, to: Node, arrive: Callable[[], None]) -> None:
        number = self.count("message")
        if max(sender.cut_off_until, to.cut_off_until) > self.now and (
            sender.is_centre or to.is_centre
        ):
            return
        latency = LATENCY * self.random.uniform(0.5, 2.0)
        if self.fault("drop message", number):
            return
        if late := self.fault("delay message", number):
            latency += late.seconds
        self.at(latency, arrive)
        if twice := self.fault("deliver message twice", number):
            self.at(latency + twice.seconds, arrive)
