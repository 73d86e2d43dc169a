"""Simulated time, nodes and a network: no thread, no real clock, no socket.

Everything that happens is an entry of one queue, ordered by time and then by arrival, and every
choice comes from a seed or from a list of faults. So the same seed and faults give the same run.

A node runs **coroutines**: generators that yield `Sleep`, `Call` or `Until`. A call sends a message
to another node, which answers with what a function returned or raised there. Messages are numbered;
a fault names the one that it drops, delays or delivers twice.
"""

import heapq
import math
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial

from elasticdl.errors import ElasticdlError, UnavailableError

ATTEMPT_SECONDS = 1.0  # then a call is sent again
LATENCY = 0.002
LOOK_SECONDS = 0.05  # between two looks whether a request that is kept can be answered


@dataclass(slots=True, eq=False)
class Sleep:
    """Go on after so many seconds."""

    seconds: float


@dataclass(slots=True, eq=False)
class Until:
    """Go on after somebody has called `wake`."""

    wake: Callable[[], None] = lambda: None


@dataclass(slots=True, eq=False)
class Call:
    """Have `work` done by the node that `find` returns then; sent again until it answers.

    find: Asked before each attempt; None: nobody is there now. What it raises is the answer.
    within: Then `UnavailableError` is raised.
    is_in_order: As by one connection after the other: what comes again, or after a later attempt,
        or after the death of who called, is not heard.
    """

    find: Callable[[], "Node | None"]
    work: Callable[["Node"], object]
    within: float = math.inf
    is_in_order: bool = False


@dataclass(slots=True, eq=False)
class Kept:
    """What `work` returns that does not answer yet. `look`: the answer, or None: still not."""

    look: Callable[[], object]


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


class Unanswered(Exception):
    """The node lives, and takes no requests now: whoever asks tries again."""


class Scheduler:
    """The queue of what happens."""

    def __init__(self, seed: int, faults: list[Fault]) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.story: list[str] = []
        self._faults: dict[str, dict[int, Fault]] = {}
        for fault in faults:
            if isinstance(fault.at, int):
                self._faults.setdefault(fault.kind, {})[fault.at] = fault
        self._counts: dict[str, int] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._is_over = False

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something happen after so many seconds."""
        self._number += 1
        heapq.heappush(self._queue, (self.now + seconds, self._number, what))

    def run(self, until: float) -> bool:
        """Let things happen until `stop` is called; return whether it was in time."""
        queue, pop = self._queue, heapq.heappop
        while queue and not self._is_over:
            self.now, _, what = pop(queue)
            if self.now > until:
                return False
            what()
        return self._is_over

    def stop(self) -> None:
        """Let nothing more happen."""
        self._is_over = True

    def tell(self, words: str) -> None:
        """Note something for the story of the run."""
        self.story.append(f"{self.now:8.3f} {words}")

    def count(self, what: str) -> int:
        """Return how many things of a kind there were before."""
        number = self._counts[what] = self._counts.get(what, -1) + 1
        return number

    def fault(self, kind: str, number: int) -> Fault | None:
        """Return the fault that is to happen to the thing of this number."""
        of_kind = self._faults.get(kind)
        found = None if of_kind is None else of_kind.get(number)
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

    def on(
        self,
        node: Node,
        what: Callable[[], None],
        if_not: Callable[[], None] | None = None,
    ) -> None:
        """Have a node do something now, or when it goes on; nothing if it is dead by then.

        if_not: Called at once if it is not done now.
        """
        if not node.is_alive or node.paused_until > self.now:
            if if_not is not None:
                if_not()
            if node.is_alive:
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
        elif isinstance(wanted, Until):
            wanted.wake = partial(self._wake, wanted, node, steps)
        else:
            _Calling(self, node, steps, wanted).attempt()

    def _wake(self, until: Until, node: Node, steps: Generator) -> None:
        until.wake = lambda: None
        self.at(0.0, lambda: self.on(node, lambda: self._go_on(node, steps, None, None)))

    # --- the network -----------------------------------------------------------------------------

    def send(
        self, sender: Node, to: Node, arrive: Callable[[], None], if_late: Callable[[], None]
    ) -> None:
        """Bring a message; `if_late` is called at once if it does not arrive soon."""
        number = self.count("message")
        if (sender.is_centre or to.is_centre) and (
            sender.cut_off_until > self.now or to.cut_off_until > self.now
        ):
            if_late()
            return
        latency = LATENCY * (0.5 + 1.5 * self.random.random())
        if not self._faults:
            self.at(latency, arrive)
            return
        if self.fault("drop message", number):
            if_late()
            return
        if late := self.fault("delay message", number):
            latency += late.seconds
            if_late()
        self.at(latency, arrive)
        if twice := self.fault("deliver message twice", number):
            self.at(latency + twice.seconds, arrive)


class _Calling:
    """A call under way: attempts, of which the first answer counts."""

    def __init__(self, world: Scheduler, node: Node, steps: Generator, call: Call) -> None:
        self.world, self.node, self.steps, self.call = world, node, steps, call
        self.is_over, self.newest = False, 0
        self.deadline = world.now + call.within

    def attempt(self) -> None:
        """Send it, if nobody has answered."""
        if self.is_over:
            return
        if self.world.now >= self.deadline:
            self._take(None, UnavailableError("nobody answers"))
            return
        is_late = is_heard = False
        self.newest = number = self.newest + 1
        try:
            target = self.call.find()
        except Exception as error:
            self._take(None, error)
            return

        def again() -> None:
            nonlocal is_late
            if not is_late and not self.is_over:
                is_late = True
                after = ATTEMPT_SECONDS * (1.0 + 0.2 * self.world.random.random())
                self.world.at(after, lambda: self.world.on(self.node, self.attempt))

        def work() -> None:
            nonlocal is_heard
            is_old = is_heard or self.is_over or number < self.newest or not self.node.is_alive
            if self.call.is_in_order and is_old:
                return
            is_heard = True
            do(lambda: self.call.work(target))

        def do(what: Callable[[], object]) -> None:
            value = error = None
            try:
                value = what()
            except Died:
                again()
                raise
            except Unanswered:
                again()
                return
            except Exception as raised:
                error = raised
            if isinstance(value, Kept):
                look = partial(do, lambda: _or_kept(value))
                self.world.at(LOOK_SECONDS, lambda: self.world.on(target, look, again))
                return
            take = partial(self.world.on, self.node, lambda: self._take(value, error))
            self.world.send(target, self.node, take, again)

        if target is None:
            again()
        else:
            self.world.send(self.node, target, lambda: self.world.on(target, work, again), again)

    def _take(self, value: object, error: Exception | None) -> None:
        if not self.is_over:
            self.is_over = True
            self.world._go_on(self.node, self.steps, value, error)


def _or_kept(kept: Kept) -> object:
    found = kept.look()
    return kept if found is None else found
