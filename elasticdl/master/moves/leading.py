"""Leads a move: which steps come when, and what their answers mean.

docs/designs/resharding.md has the order of the steps, and says why every count stays exact. The
move can be given up until the journal says that the model has moved.

Generators tell what is to be done, without threads: they yield `AskReplicas`, `Pause` and
`WritePoint`. `Mover` does it in threads; simulations do it in their own time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from elasticdl.errors import ElasticdlError, NotDeclaredError, StoreError
from elasticdl.locations import Location
from elasticdl.master.moves.messages import AbandonMove, PrepareMove, PsProcess, TellMoved
from elasticdl.master.moves.steps import (
    Abandon,
    Begin,
    Copy,
    Cut,
    Describe,
    Hold,
    MoveStep,
    Ready,
    RedoLogPlace,
    Release,
    ReplicaMarks,
    Settle,
    Switch,
    Told,
)

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

T = TypeVar("T")
Clock = Callable[[], float]
RedoLogOf = Callable[[int, int], RedoLogPlace | None]
"""Returns the place of a replica's redo log in a layout; None: it has none."""


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

    steps: Mapping[PsProcess, MoveStep]
    needed: Sequence[PsProcess] = ()
    is_anew: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Go on after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class WritePoint:
    """Write a checkpoint. `parts`: has replicas write theirs into a folder; returns the entries."""

    parts: Callable[[Location], Led[list[str]]]


Answers = Mapping[PsProcess, Told | ElasticdlError] | None
Led = Generator[AskReplicas | Pause | WritePoint, Answers, T]


def prepare(
    action: PrepareMove,
    memory_limit: int | None,
    redo_log_of: RedoLogOf,
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

    def step(seated: PsProcess) -> MoveStep:
        return Switch(action.layout, seated.index >= action.count, action.addresses)

    return (yield from _all_do(action.whom, step, clock))


def abandon(action: AbandonMove, clock: Clock = time.monotonic) -> Led[None]:
    """Have replicas stay as they are; those out of reach are asked for some time."""
    yield from _all_do(action.whom, lambda _: Abandon(action.layout), clock)


def _all_do(
    whom: Sequence[PsProcess], step: Callable[[PsProcess], MoveStep], clock: Clock
) -> Led[bool]:
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
            told = yield from self._each(self._now, Describe())
        except NotDeclaredError:
            raise  # one came back empty: a worker will declare the model to it
        except StoreError as error:
            raise MoveRefusedError(str(error)) from error
        described = [found.described for found in told]
        count, first = len(self._after), described[0]
        check_room([found.row_bytes for found in described], count, memory_limit)
        rows = zip(*(found.num_rows for found in described), strict=True)
        num_rows = [sum(of_table) // count for of_table in rows]
        steps: dict[PsProcess, MoveStep] = {
            seated: Begin(
                self._number, i, count, first.model, first.is_restored, num_rows, memory_limit
            )
            for i, seated in enumerate(self._after)
        }
        yield from self._ask(steps)

    def cut(self, directory: Location) -> Led[list[str]]:
        """Have all write a checkpoint of one instant, at which they have applied the same."""
        hold, _ = yield from self._agree(first=1)
        told = yield from self._each(self._now, Cut(self._number, hold, str(directory)))
        return [of_replica.entry for of_replica in told]

    def copy(self) -> Led[ReplicaMarks]:
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

    def ready(self, marks: ReplicaMarks, redo_log_of: RedoLogOf) -> Led[None]:
        """Tell the replicas of the next layout that they have everything."""
        began, number = self._clock(), self._number
        steps: dict[PsProcess, MoveStep] = {
            seated: Ready(number, marks, redo_log_of(replica, number))
            for replica, seated in enumerate(self._after)
        }
        yield from self._ask(steps)
        log.info("layout %d: ready in %.3f s", self._number, self._clock() - began)

    def _copy(self, is_last: bool = False) -> Led[int]:
        steps: dict[PsProcess, MoveStep] = {}
        for source in self._now:
            targets = ["" if target == source else target.address for target in self._after]
            steps[source] = Copy(self._number, targets, self._round, is_last)
        self._round += 1  # round 0 copies all rows, each later one what has changed since
        told = yield from self._ask(steps)
        return sum(of_replica.num_rows for of_replica in told)

    def _agree(self, first: int) -> Led[tuple[int, ReplicaMarks]]:
        """Hold all at an instant at which they have applied the same of every task.

        A gradient that only some replicas have applied is let in at the others. If it does not
        come, its worker may be lost. All replicas go on then, so that another worker can do the
        task, and they are held again later.

        Returns the number of the hold, and the marks that the next layout begins with.
        """
        for hold in range(first, first + _TIMES):
            held = yield from self._each(self._now, Hold(self._number, hold))
            limits = list(next_of_tasks([told.marks for told in held]).items())
            settle = Settle(self._number, hold, limits, _SETTLE_MS)
            settled = yield from self._each(self._now, settle)
            marks = [told.marks for told in settled]
            if do_agree(marks):
                return hold, merged(marks)
            yield from self._each(self._now, Release(self._number, hold))
            yield Pause(_PAUSE_SECONDS)
        raise NotSettledError(
            "the ps replicas had not applied the same minibatches at any of "
            f"{_TIMES} instants: a worker may have been lost"
        )

    def _each(self, whom: Sequence[PsProcess], step: MoveStep) -> Led[list[Told]]:
        return (yield from self._ask(dict.fromkeys(whom, step)))

    def _ask(self, steps: Mapping[PsProcess, MoveStep]) -> Led[list[Told]]:
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


def next_of_tasks(marks: Sequence[ReplicaMarks]) -> dict[int, int]:
    """Return the furthest that any replica is in each task."""
    found: dict[int, int] = {}
    for of_replica in marks:
        for task, _, next_index, _ in of_replica.watermarks:
            found[task] = max(found.get(task, 0), next_index)
    return found


def do_agree(marks: Sequence[ReplicaMarks]) -> bool:
    """Whether all replicas have applied the same of every task.

    Some replicas may not know a task of which nothing was applied. Some may have forgotten a task
    that was done long ago. Neither is a difference.
    """
    first = max(of_replica.first_task for of_replica in marks)

    def applied(of_replica: ReplicaMarks) -> dict[int, tuple[int, int]]:
        return {
            task: (next_index, records)
            for task, _, next_index, records in of_replica.watermarks
            if next_index and task >= first
        }

    return all(applied(of_replica) == applied(marks[0]) for of_replica in marks)


def merged(marks: Sequence[ReplicaMarks]) -> ReplicaMarks:
    """Return the marks that a replica of the next layout begins with, from replicas that agree.

    For each task the newest lease that has begun at any replica counts: older leases are over.
    """
    watermarks: dict[int, list[int]] = {}
    for of_replica in marks:
        for task, lease, next_index, records in of_replica.watermarks:
            known = watermarks.setdefault(task, [task, lease, next_index, records])
            known[1] = max(known[1], lease)
            known[2], known[3] = max(known[2], next_index), max(known[3], records)
    periods = [of_replica.periods for of_replica in marks]
    num_rests = max(len(of_replica.rests) for of_replica in marks)
    rests = [[*m.rests, *[0] * (num_rests - len(m.rests))] for m in marks]
    return ReplicaMarks(
        version=max(of_replica.version for of_replica in marks),
        first_task=max(of_replica.first_task for of_replica in marks),
        watermarks=[watermarks[task] for task in sorted(watermarks)],
        rests=[max(of_variable) for of_variable in zip(*rests, strict=True)],
        times=common_times([of_replica.times for of_replica in marks]),
        periods=[max(of_table) for of_table in zip(*periods, strict=True)],
    )


def common_times(notes: Sequence[Sequence[Sequence[int]]]) -> list[list[int]]:
    """Return the times of versions that hold for all replicas.

    At each time that all replicas noted, the lowest version counts.

    Args:
        notes: The versions of each replica with their times in seconds, rising.
    """
    found = [{time: version for version, time in of_replica} for of_replica in notes]
    shared = [time for time in found[0] if all(time in known for known in found)]
    return [[min(known[time] for known in found), time] for time in shared]
