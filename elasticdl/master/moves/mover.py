"""Leads moves in threads, with calls to real replicas."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

from elasticdl.errors import ElasticdlError, UnavailableError
from elasticdl.locations import Location
from elasticdl.master.moves.leading import (
    Answers,
    AskReplicas,
    Led,
    Pause,
    RedoLogOf,
    WritePoint,
    abandon,
    prepare,
    tell,
)
from elasticdl.master.moves.messages import AbandonMove, PrepareMove, PsProcess, TellMoved
from elasticdl.master.moves.steps import MoveStep, Told, decoded, encoded

_MOST_THREADS = 1_000  # each is started when it is needed

T = TypeVar("T")
Write = Callable[[Callable[[Location], list[str]]], None]
"""Writes a checkpoint, given a function that has the replicas write their parts."""


class MovingReplica(Protocol):
    """The methods of `elasticdl._core.PsClient` that a move needs, for any one replica."""

    def move_step(self, replica: int, step: str) -> str:
        """Have the replica do a step; both as JSON."""
        ...


class LostProcesses:
    """Keeps the processes that were lost during a move, for threads that wait for their answers.

    A thread would otherwise wait for a dead process as long as for one that is out of reach. All
    replicas that are held would wait too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: set[str] = set()
        self._next: Future[None] = Future()

    def add(self, session: str) -> None:
        """Note that a process is lost, and wake those who wait."""
        with self._lock:
            self._sessions.add(session)
            told, self._next = self._next, Future()
        # Outside of the lock, since a thread that wakes takes the lock at once.
        told.set_result(None)

    def has(self, seated: PsProcess) -> bool:
        """Return whether a process is lost."""
        with self._lock:
            return seated.session in self._sessions

    def answers(
        self, asked: Mapping[PsProcess, Future[T]], needed: Sequence[PsProcess] = ()
    ) -> dict[PsProcess, T]:
        """Wait for the answers of processes; return the answers of all that live, in order.

        Args:
            asked: The future answer of each process.
            needed: Processes that must not be lost.

        Raises:
            UnavailableError: A needed process is lost.
            Exception: A call to a process raised it.
        """
        while True:
            # Both are read under one lock: a loss after it completes `loss`, so none is missed.
            with self._lock:
                loss, sessions = self._next, set(self._sessions)
            for seated in needed:
                if seated.session in sessions:
                    raise UnavailableError(f"ps replica {seated.index} was lost")
            here = {s: answer for s, answer in asked.items() if s.session not in sessions}
            done = {s: answer.result() for s, answer in here.items() if answer.done()}
            if len(done) == len(here):
                return done
            awaited: list[Future[Any]] = [here[s] for s in here.keys() - done.keys()]
            wait([*awaited, loss], return_when=FIRST_COMPLETED)


class Mover:
    """Leads moves, in threads. Calls block.

    connect: Reaches one replica. memory_limit: bytes of rows that each may hold; None: any.
    losses: who was lost since; may be told from any thread.
    """

    def __init__(
        self, connect: Callable[[str], MovingReplica], memory_limit: int | None = None
    ) -> None:
        self._connect, self._memory_limit = connect, memory_limit
        self.losses = LostProcesses()

    def prepare(
        self,
        action: PrepareMove,
        write: Write,
        redo_log_of: RedoLogOf,
    ) -> None:
        """Bring all replicas to a hold at which the replicas of the next layout have everything.

        Args:
            action: The old layout and the new one.
            write: Writes a checkpoint, given a function that has the replicas write their parts.
            redo_log_of: Returns the place of a replica's redo log in a layout; None: it has none.

        Raises:
            MoveRefusedError: The model cannot move at all.
            ElasticdlError: A replica is lost, or cannot do a step. The move has been given up.
        """
        self._lead(prepare(action, self._memory_limit, redo_log_of), write)

    def tell(self, action: TellMoved) -> bool:
        """Have replicas go over to the next layout; return whether all have."""
        return self._lead(tell(action))

    def abandon(self, action: AbandonMove) -> None:
        """Have replicas stay as they are; those out of reach are asked for some time."""
        self._lead(abandon(action))

    def _lead(self, led: Led[T], write: Write | None = None) -> T:
        clients: dict[str, MovingReplica] = {}
        pool = ThreadPoolExecutor(_MOST_THREADS, "move")

        def answer_of(address: str, step: MoveStep, is_anew: bool) -> Told | ElasticdlError:
            try:
                if is_anew or address not in clients:
                    clients[address] = self._connect(address)
                return decoded(clients[address].move_step(0, encoded(step)))
            except ElasticdlError as error:
                return error
            except (ValueError, RuntimeError) as error:
                # The process knows nothing of this move, as it is a new one, or it takes too long.
                return UnavailableError(f"a ps replica cannot go on with a move: {error}")

        def ask(wanted: AskReplicas) -> Answers:
            asked = {
                seated: pool.submit(answer_of, seated.address, step, wanted.is_anew)
                for seated, step in wanted.steps.items()
            }
            return self.losses.answers(asked, wanted.needed)

        try:
            return _led_to_its_end(led, ask, write)
        finally:
            pool.shutdown(wait=False)  # nobody waits for the answer of a lost process


def _led_to_its_end(led: Led[T], ask: Callable[[AskReplicas], Answers], write: Write | None) -> T:
    """Do what is told, one thing after the other."""
    answers: Answers = None
    failure: Exception | None = None
    while True:
        try:
            wanted = led.send(answers) if failure is None else led.throw(failure)
        except StopIteration as end:
            returned: T = end.value
            return returned
        answers = failure = None
        try:
            match wanted:
                case AskReplicas():
                    answers = ask(wanted)
                case Pause(seconds):
                    time.sleep(seconds)
                case WritePoint(parts):
                    assert write is not None, "only who prepares a move writes"
                    write(_writer(parts, ask))
        except Exception as error:
            failure = error


def _writer(
    parts: Callable[[Location], Led[list[str]]], ask: Callable[[AskReplicas], Answers]
) -> Callable[[Location], list[str]]:
    return lambda folder: _led_to_its_end(parts(folder), ask, None)
