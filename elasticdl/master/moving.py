"""The steps of a move, which leads ps replicas to another number of replicas.

docs/designs/resharding.md has the order of the steps, and says why every count stays exact. No
step here decides anything: the move can be given up until the journal says that the model has
moved.

Generators tell the steps, without threads: they yield `AskReplicas`, `Pause` and `WritePoint`.
`Mover` does these steps in threads; simulations do them in their own time.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, TypeVar

from elasticdl.errors import ElasticdlError, NotDeclaredError, StoreError, UnavailableError
from elasticdl.locations import Location
from elasticdl.master.actions import AbandonMove, PrepareMove, Seated, TellMoved

log = logging.getLogger(__name__)

_FEW_ROWS = 20_000  # rows that the last copy may have, while updates wait
_MOST_ROUNDS = 16  # rounds of copies before the last one
_STILL_FEWER = 0.9  # a round with more than this share of the best round's rows is no better
_MOST_NO_BETTER = 3  # rounds in a row that were no better: more would not help
_TIMES = 7  # holds until all agree; fewer than half of MAX_HOLDS
_SETTLE_MS = 150
_PAUSE_SECONDS = 0.3  # pause after a hold in which replicas did not agree
_TELL_SECONDS = 20.0
_AGAIN_SECONDS = 0.2
_MOST_THREADS = 1_000  # each is started when it is needed

T = TypeVar("T")
Told = Mapping[str, Any]
Clock = Callable[[], float]


class RedoLogPlace(TypedDict):
    """The place of a replica's redo log, and the bytes of it that are kept."""

    folder: str
    limit: int


class MovingReplica(Protocol):
    """The methods of `elasticdl._core.PsClient` that a move needs, for any one replica."""

    def move_step(self, replica: int, step: str) -> str:
        """Have the replica do a step; both as JSON."""
        ...


class MoveRefusedError(ElasticdlError):
    """The model has something that cannot move."""


class NotSettledError(ElasticdlError):
    """The replicas had not applied the same: a minibatch was lost on its way to some of them."""


@dataclass(frozen=True, slots=True)
class AskReplicas:
    """Have processes do steps, all at the same time.

    The generator gets the answer of each process back, or its error. It gets nothing for a lost
    process. If a needed process is lost, `UnavailableError` is raised instead.

    is_anew: The steps use new connections, since the old ones may still wait for an earlier answer.
    """

    steps: Mapping[Seated, Told]
    needed: Sequence[Seated] = ()
    is_anew: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Go on after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class WritePoint:
    """Write a checkpoint. `parts`: has replicas write theirs into a folder; returns the entries."""

    parts: Callable[[Location], Led[list[str]]]


Answers = Mapping[Seated, Told | ElasticdlError] | None
Led = Generator[AskReplicas | Pause | WritePoint, Answers, T]
Write = Callable[[Callable[[Location], list[str]]], None]


class Losses:
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

    def has(self, seated: Seated) -> bool:
        """Return whether a process is lost."""
        with self._lock:
            return seated.session in self._sessions

    def answers(
        self, asked: Mapping[Seated, Future[T]], needed: Sequence[Seated] = ()
    ) -> dict[Seated, T]:
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
        self.losses = Losses()

    def prepare(
        self,
        action: PrepareMove,
        write: Write,
        redo_log_of: Callable[[int, int], RedoLogPlace | None],
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

        def answer_of(address: str, step: Told, is_anew: bool) -> Told | ElasticdlError:
            try:
                if is_anew or address not in clients:
                    clients[address] = self._connect(address)
                told: Told = json.loads(clients[address].move_step(0, json.dumps(step)))
            except ElasticdlError as error:
                return error
            except (ValueError, RuntimeError) as error:
                # The process knows nothing of this move, as it is a new one, or it takes too long.
                return UnavailableError(f"a ps replica cannot go on with a move: {error}")
            return told

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


def prepare(
    action: PrepareMove,
    memory_limit: int | None,
    redo_log_of: Callable[[int, int], RedoLogPlace | None],
    clock: Clock = time.monotonic,
) -> Led[None]:
    """Bring all replicas to a hold, as `Mover.prepare` says."""
    steps = MoveSteps(action, clock)
    try:
        yield from steps.begin(memory_limit)
        # A replica that is lost after the move begins with this checkpoint, so it comes first.
        yield WritePoint(steps.cut)
        marks = yield from steps.copy()
        yield from steps.ready(marks, redo_log_of)
    except Exception:
        yield from abandon(AbandonMove(action.layout, steps.everybody), clock)
        raise


def tell(action: TellMoved, clock: Clock = time.monotonic) -> Led[bool]:
    """Have replicas go over to the next layout; return whether all have."""

    def step(seated: Seated) -> Told:
        leaves = seated.index >= action.count
        addresses = list(action.addresses)
        return {"switch": {"number": action.layout, "leaves": leaves, "addresses": addresses}}

    return (yield from _all_do(action.whom, step, clock))


def abandon(action: AbandonMove, clock: Clock = time.monotonic) -> Led[None]:
    """Have replicas stay as they are; those out of reach are asked for some time."""
    yield from _all_do(action.whom, lambda _: {"abandon": {"number": action.layout}}, clock)


def _all_do(whom: Sequence[Seated], step: Callable[[Seated], Told], clock: Clock) -> Led[bool]:
    """Have all do a step, at the same time; return whether all have that are not lost."""
    waiting, deadline = list(whom), clock() + _TELL_SECONDS
    while waiting and clock() < deadline:
        steps = {seated: step(seated) for seated in waiting}
        answers = yield AskReplicas(steps, is_anew=True)
        assert answers is not None
        waiting = []
        for seated, answer in answers.items():
            if isinstance(answer, ElasticdlError):
                log.info("ps replica %d, of a move: %s", seated.index, answer)
                waiting.append(seated)
        if waiting:
            yield Pause(_AGAIN_SECONDS)
    return not waiting


class MoveSteps:
    """The steps of one move, in their order; each asked of all at the same time."""

    def __init__(self, action: PrepareMove, clock: Clock = time.monotonic) -> None:
        self._number, self._clock = action.layout, clock
        self._now, self._after = action.now, action.after
        self.everybody = tuple(
            {seated.index: seated for seated in (*action.now, *action.after)}.values()
        )
        self._round = 0

    def begin(self, memory_limit: int | None) -> Led[None]:
        """Have the replicas of the next layout begin to fill their stores."""
        try:
            told = yield from self._each(self._now, {"describe": {}})
        except NotDeclaredError:
            raise  # one came back empty: a worker will declare the model to it
        except StoreError as error:
            raise MoveRefusedError(str(error)) from error
        described = [found["described"] for found in told]
        count = len(self._after)
        bytes_now = [found["row_bytes"] for found in described]
        check_room(bytes_now, count, memory_limit)
        rows = zip(*(found["num_rows"] for found in described), strict=True)
        step = {
            "number": self._number,
            "num_replicas": count,
            "model": described[0]["model"],
            "is_restored": described[0]["is_restored"],
            "num_rows": [sum(of_table) // count for of_table in rows],
            "memory_limit": memory_limit,
        }
        after = enumerate(self._after)
        yield from self._ask({s: {"begin": {**step, "replica": i}} for i, s in after})

    def cut(self, directory: Location) -> Led[list[str]]:
        """Have all write a checkpoint of one instant, at which they have applied the same."""
        hold, _ = yield from self._agree(first=1)
        step = {"number": self._number, "hold": hold, "directory": str(directory)}
        told = yield from self._each(self._now, {"cut": step})
        return [of_replica["entry"] for of_replica in told]

    def copy(self) -> Led[dict[str, Any]]:
        """Copy all rows while updates go on; then hold all replicas, and copy the last changes.

        Returns the marks that the next layout begins with. From here on all replicas are held.
        """
        # Each round copies the rows that changed during the round before. The fewer are left,
        # the shorter is the hold. If updates change rows as fast as they are copied, more rounds
        # do not help.
        fewest, num_no_better = (yield from self._copy()), 0
        for _ in range(_MOST_ROUNDS):
            num_rows = yield from self._copy()
            num_no_better = num_no_better + 1 if num_rows > _STILL_FEWER * fewest else 0
            fewest = min(fewest, num_rows)
            if num_rows <= _FEW_ROWS or num_no_better == _MOST_NO_BETTER:
                break
        began = self._clock()
        # Holds are numbered; `cut` has used the first `_TIMES` numbers.
        _, marks = yield from self._agree(first=1 + _TIMES)
        held = self._clock()
        num_rows = yield from self._copy(is_last=True)
        log.info(
            "layout %d: held and agreed in %.3f s, %d rows copied in %.3f s",
            self._number,
            held - began,
            num_rows,
            self._clock() - held,
        )
        return marks

    def ready(
        self, marks: dict[str, Any], redo_log_of: Callable[[int, int], RedoLogPlace | None]
    ) -> Led[None]:
        """Tell the replicas of the next layout that they have everything."""
        began, steps = self._clock(), {}
        for replica, seated in enumerate(self._after):
            redo_log = redo_log_of(replica, self._number)
            step = {"number": self._number, "marks": marks, "redo_log": redo_log}
            steps[seated] = {"ready": step}
        yield from self._ask(steps)
        log.info("layout %d: ready in %.3f s", self._number, self._clock() - began)

    def _copy(self, is_last: bool = False) -> Led[int]:
        steps = {}
        for source in self._now:
            targets = ["" if target == source else target.address for target in self._after]
            step = {"number": self._number, "targets": targets, "round": self._round}
            steps[source] = {"copy": {**step, "is_last": is_last}}
        self._round += 1  # round 0 copies all rows, each later one what has changed since
        told = yield from self._ask(steps)
        return sum(of_replica["num_rows"] for of_replica in told)

    def _agree(self, first: int) -> Led[tuple[int, dict[str, Any]]]:
        """Hold all at an instant at which they have applied the same of every task.

        A gradient that only some replicas have applied is let in at the others. If it does not
        come, its worker may be lost. All replicas go on then, so that another worker can do the
        task, and they are held again later.

        Returns the number of the hold, and the marks that the next layout begins with.
        """
        for hold in range(first, first + _TIMES):
            step = {"number": self._number, "hold": hold}
            held = yield from self._each(self._now, {"hold": step})
            limits = list(next_of_tasks([told["marks"] for told in held]).items())
            settle = {**step, "limits": limits, "wait_ms": _SETTLE_MS}
            settled = yield from self._each(self._now, {"settle": settle})
            marks = [told["marks"] for told in settled]
            if do_agree(marks):
                return hold, merged(marks)
            yield from self._each(self._now, {"release": step})
            yield Pause(_PAUSE_SECONDS)
        raise NotSettledError(
            "the ps replicas had not applied the same minibatches at any of "
            f"{_TIMES} instants: a worker may have been lost"
        )

    def _each(self, whom: Sequence[Seated], step: Told) -> Led[list[Told]]:
        return (yield from self._ask(dict.fromkeys(whom, step)))

    def _ask(self, steps: Mapping[Seated, Told]) -> Led[list[Told]]:
        """Have processes do steps; return what each has told.

        Raises:
            UnavailableError: Any process of the move is lost, also one that is not asked.
        """
        answers = yield AskReplicas(steps, needed=self.everybody)
        assert answers is not None
        told = []
        for answer in answers.values():
            if isinstance(answer, ElasticdlError):
                raise answer
            told.append(answer)
        return told


def check_room(bytes_now: Sequence[int], count: int, limit: int | None) -> None:
    """Check that each replica may hold its rows twice: as they are, and by the next layout.

    Args:
        bytes_now: Bytes of the rows of each present replica.
        count: The number of replicas in the next layout.
        limit: Bytes of rows that each may hold; None: any.

    Raises:
        MoveRefusedError: A replica may not hold so much.
    """
    more = sum(bytes_now) // count
    stays = bytes_now[:count]
    if limit is not None and max(stays) + more > limit:
        raise MoveRefusedError(
            f"ps replica {stays.index(max(stays))} holds {max(stays):,} bytes of rows, and while "
            f"the model moves to {count} replicas it holds about {more:,} more; "
            f"--ps_memory_limit={limit:,} is less"
        )


def next_of_tasks(marks: Sequence[Told]) -> dict[int, int]:
    """Return the furthest that any replica is in each task."""
    found: dict[int, int] = {}
    for of_replica in marks:
        for task, _, next_index, _ in of_replica["watermarks"]:
            found[task] = max(found.get(task, 0), next_index)
    return found


def do_agree(marks: Sequence[Told]) -> bool:
    """Whether all replicas have applied the same of every task.

    Some replicas may not know a task of which nothing was applied. Some may have forgotten a task
    that was done long ago. Neither is a difference.
    """
    first = max(of_replica["first_task"] for of_replica in marks)

    def applied(of_replica: Told) -> dict[int, tuple[int, int]]:
        return {
            task: (next_index, records)
            for task, _, next_index, records in of_replica["watermarks"]
            if next_index and task >= first
        }

    return all(applied(of_replica) == applied(marks[0]) for of_replica in marks)


def merged(marks: Sequence[Told]) -> dict[str, Any]:
    """Return the marks that a replica of the next layout begins with, from replicas that agree.

    For each task the newest lease that has begun at any replica counts: older leases are over.
    """
    watermarks: dict[int, list[int]] = {}
    for of_replica in marks:
        for task, lease, next_index, records in of_replica["watermarks"]:
            known = watermarks.setdefault(task, [task, lease, next_index, records])
            known[1] = max(known[1], lease)
            known[2], known[3] = max(known[2], next_index), max(known[3], records)
    periods = [of_replica["periods"] for of_replica in marks]
    num_rests = max(len(of_replica["rests"]) for of_replica in marks)
    rests = [[*m["rests"], *[0] * (num_rests - len(m["rests"]))] for m in marks]
    return {
        "version": max(of_replica["version"] for of_replica in marks),
        "first_task": max(of_replica["first_task"] for of_replica in marks),
        "watermarks": [watermarks[task] for task in sorted(watermarks)],
        "rests": [max(of_variable) for of_variable in zip(*rests, strict=True)],
        "times": common_times([of_replica["times"] for of_replica in marks]),
        "periods": [max(of_table) for of_table in zip(*periods, strict=True)],
    }


def common_times(notes: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """Return the times of versions that hold for all replicas.

    At each time that all replicas noted, the lowest version counts.

    Args:
        notes: The versions of each replica with their times in seconds, rising.
    """
    found = [{time: version for version, time in of_replica} for of_replica in notes]
    shared = [time for time in found[0] if all(time in known for known in found)]
    return [[min(known[time] for known in found), time] for time in shared]
