"""Moves of the model to another number of ps replicas, while it is trained.

A move is tried under a **layout** number of its own. Replicas get ready for it while they serve the
layout before; until all are ready it can be given up, and nothing has happened. Then one fact of
the journal decides: from there on the next layout counts, whoever is lost. Replicas are told, and
those that have no part of it any more are ended. See docs/designs/resharding.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError
from elasticdl.job import Role
from elasticdl.master.journal import Journal
from elasticdl.master.membership import Member, Membership
from elasticdl.master.moves.messages import AbandonMove, PrepareMove, PsProcess, TellMoved
from elasticdl.settings.cluster import MOST_PS
from elasticdl.state.base import Snapshot

_PAUSE_SECONDS = 1.0  # pause after a try that came to nothing
_MOST_FAILURES = 5  # failures of processes that were to take part in a move


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """The place that the master tells to a process that becomes a ps replica."""

    num_replicas: int
    layout: int
    awaits_move: bool


class Moves:
    """Keeps the number of ps replicas, and the number that is wanted.

    number: the number of replicas now.
    layout: the layout that counts now. Tries that came to nothing use up numbers too.
    wanted: the number of replicas that is wanted; 0: the number now.
    """

    def __init__(self, journal: Journal, members: Membership, number: int) -> None:
        """Start with the number of replicas that the job is set up with."""
        self._journal = journal
        self._members = members
        self.number = number
        self.layout = 0
        self.wanted = 0
        self._tried = 0  # the last layout number that was used
        self._untold: list[PsProcess] | None = None  # who is still to be told of the move
        self._failures = 0  # failures of processes that the wanted move waits for
        self._not_before = 0.0  # time; not journalled
        self._is_tried = False  # by this master, just now; not journalled
        journal.handle("move wanted", self._apply_wanted)
        journal.handle("move tried", self._apply_tried)
        journal.handle("move place failed", self._apply_place_failed)
        journal.handle("moved", self._apply_moved)
        journal.handle("move told", self._apply_told)

    # --- events ----------------------------------------------------------------------------------

    def want(self, count: int) -> None:
        """Note the number of replicas that is wanted.

        The number now calls off a move that waits for its processes.

        Raises:
            ElasticdlError: The number is out of range, or the move before is not over.
        """
        if not 1 <= count <= MOST_PS:
            raise ElasticdlError(f"expected 1 to {MOST_PS:,} ps replicas, found {count}")
        waits = self.is_under_way and not self.is_being_told and not self._is_tried
        if self.is_going_on and not (waits and count == self.number):
            stays = f", or for {self.number} to have it stay" if waits else ""
            raise ElasticdlError(
                f"the model moves to {self.wanted or self.number} ps replicas now; ask again when "
                f"it has{stays}"
            )
        self._journal.record("move wanted", 0 if count == self.number else count)

    def begin(self, version: int) -> PrepareMove:
        """Try the move; return what is to be done."""
        # Each try has a number of its own, so that a replica cannot take a late message of an
        # earlier try for one of this try.
        layout, self._is_tried = self._tried + 1, True
        self._journal.record("move tried", layout)
        return PrepareMove(layout, version, self._seated(self.number), self._seated(self.wanted))

    def moved(self, done: PrepareMove) -> TellMoved:
        """Decide that the next layout counts; return what is to be done."""
        self._is_tried = False
        sessions = [seated.session for seated in done.after]
        self._journal.record("moved", done.layout, sessions)
        return self._tell()

    def told(self, is_everybody: bool) -> TellMoved | None:
        """Note that replicas know it; return what is still to be done."""
        if self._untold is None:
            return None
        self._untold = [seated for seated in self._untold if self._is_there(seated)]
        if not is_everybody and self._untold:
            return self._tell()
        self._journal.record("move told", self.layout)
        return None

    def failed(self, now: float) -> None:
        """A try came to nothing; there will be another."""
        self._is_tried = False
        self._not_before = now + _PAUSE_SECONDS

    def place_failed(self) -> bool:
        """A process failed that was to have a part of the model; return whether that is enough.

        Then the model stays where it is: the job lacks nothing.
        """
        self._journal.record("move place failed")
        if self._failures < _MOST_FAILURES:
            return False
        self.give_up()
        return True

    def give_up(self) -> None:
        """The model stays where it is."""
        self._journal.record("move wanted", 0)

    def resumed(self) -> AbandonMove | TellMoved | None:
        """Return what is to be done about a move that another master has begun."""
        if self._untold is not None:
            return self._tell()
        if self._tried > self.layout:
            here = [m for m in self._members.present(Role.PS) if m.is_alive]
            return AbandonMove(self._tried, tuple(map(_seated, here)))
        return None

    # --- questions -------------------------------------------------------------------------------

    @property
    def num_places(self) -> int:
        """The number of places, including the places that a move is to fill."""
        return max(self.number, self.wanted)

    @property
    def is_under_way(self) -> bool:
        """Whether there are to be more replicas, or fewer."""
        return self.wanted != 0

    @property
    def is_going_on(self) -> bool:
        """Whether replicas may be asked for a move, or are told of one."""
        return self.is_under_way or self.is_being_told

    @property
    def is_being_told(self) -> bool:
        """Whether the model has moved, and not all replicas are known to serve the next layout.

        Until then nobody is asked for what all hold: some would speak of the layout before.
        """
        return self._untold is not None

    def has_gone_over(self, member: Member) -> bool:
        """Whether a replica is known to serve the layout that counts."""
        untold = self._untold or ()
        return all(seated.session != member.session for seated in untold)

    def may_begin(self, now: float) -> bool:
        """Whether a move is wanted, and all are there that take part."""
        if not self.is_under_way or self.is_being_told or now < self._not_before:
            return False
        members = (self._members.find(Role.PS, index) for index in range(self.num_places))
        return all(m is not None and m.is_alive and not m.is_departing for m in members)

    def is_as_prepared(self, done: PrepareMove) -> bool:
        """Whether all who got ready are still there."""
        return all(map(self._is_there, (*done.now, *done.after)))

    def place_of(self, index: int) -> ReplicaPlace:
        """Return what a process that starts at a place is told."""
        if index < self.number:
            return ReplicaPlace(self.number, self.layout, awaits_move=False)
        return ReplicaPlace(self.num_places, self.layout, awaits_move=True)

    def superfluous(self) -> list[Member]:
        """Return the processes that have no part of the model, and will have none.

        A process that is being started is left out until it can be ended.
        """
        members = (m for m in self._members.present(Role.PS) if m.handle or m.session)
        return [m for m in members if m.index >= self.num_places and not m.is_stopping]

    def _seated(self, count: int) -> tuple[PsProcess, ...]:
        members = (self._members.find(Role.PS, index) for index in range(count))
        return tuple(_seated(member) for member in members if member is not None)

    def _is_there(self, seated: PsProcess) -> bool:
        member = self._members.find(Role.PS, seated.index)
        is_it = member is not None and member.session == seated.session
        return member is not None and is_it and member.is_alive and not member.is_leaving

    def _tell(self) -> TellMoved:
        assert self._untold is not None
        addresses = tuple(seated.address for seated in self._seated(self.number))
        return TellMoved(self.layout, self.number, tuple(self._untold), addresses)

    # --- facts -----------------------------------------------------------------------------------

    def _apply_wanted(self, count: int) -> None:
        self.wanted, self._failures = count, 0

    def _apply_place_failed(self) -> None:
        self._failures += 1

    def _apply_tried(self, layout: int) -> None:
        self._tried = layout

    def _apply_moved(self, layout: int, sessions: Sequence[str]) -> None:
        self._untold = list(self._seated(self.num_places))
        self.layout, self.number, self.wanted = layout, len(sessions), 0

    def _apply_told(self, layout: int) -> None:
        self._untold = None

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        untold = None
        if self._untold is not None:
            untold = [[s.index, s.session, s.address] for s in self._untold]
        return {
            "number": self.number,
            "layout": self.layout,
            "wanted": self.wanted,
            "tried": self._tried,
            "failures": self._failures,
            "untold": untold,
        }

    def restore(self, snapshot: Snapshot | None) -> None:
        """Take over the state of a snapshot; None: of an earlier version, which knew no moves."""
        if snapshot is None:
            return
        self.number, self.layout = snapshot["number"], snapshot["layout"]
        self.wanted, self._tried = snapshot["wanted"], snapshot["tried"]
        self._failures = snapshot.get("failures", 0)
        untold = snapshot["untold"]
        self._untold = None if untold is None else [PsProcess(*values) for values in untold]


def _seated(member: Member) -> PsProcess:
    return PsProcess(member.index, member.session, member.address)


def check_may_move(config: JobConfig) -> None:
    """Check that the model of a job can move to another number of ps replicas.

    Raises:
        ElasticdlError: It cannot; names the flag.
    """
    if why := config.why_ps_stay:
        raise ElasticdlError(
            f"the number of ps replicas cannot be changed while this job runs: {why}. Stop it, and "
            "go on from a checkpoint with --num_ps_pods and --checkpoint_dir_for_init"
        )
