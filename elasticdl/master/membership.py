"""The members of the job: processes that were planned, started, heard of, and lost.

A process is **pending** while its launcher has no room for it or fetches its image. A pending
process is never too silent: silence counts from the moment at which the process runs.

A process has a role and an index. Indexes of workers are never used twice; a ps replica's index is
its place in the model, and its successor takes it over. Each process draws a **session** when it
starts. By the session the master tells a process that was given up and still speaks from its
successor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from elasticdl.errors import ElasticdlError
from elasticdl.job import Role, Usage
from elasticdl.master import heartbeats
from elasticdl.master.journal import Journal
from elasticdl.state.base import Snapshot

START_TIMEOUT_SECONDS = 300.0
"""A process that runs is given so long to ask for work or to send a heartbeat: a machine
under load may take minutes to import a framework and build a model. A ps replica that restores
sends some as long as it gets on."""

_LONGEST_TICK_SECONDS = 1.0
_DEAD_KEPT = 100


@dataclass(slots=True)
class Member:
    """One process of the job, at one index.

    The fields after `has_exited` are not journalled. The launcher and the process tell them again
    to another master.
    """

    role: Role
    index: int
    handle: str = ""  # the launcher's reference, once started by it
    session: str = ""  # once it has registered
    pid: int = 0
    address: str = ""  # ps replicas and model servers
    incarnation: int = 0  # counts the sessions at this index
    is_stopping: bool = False  # asked to end: its end is no loss
    is_leaving: bool = False  # asked to end, by others: it hands over what it has
    before: str = ""  # the launcher's reference of the process before, if that may still run
    gone: str = ""  # why it is no longer part of the job
    has_exited: bool = False  # its process is known to have ended
    last_heard: float = 0.0
    pending: str = ""  # why its launcher has not started it yet
    lacks_room: bool = False  # it is pending because its cluster has no room
    waits_since: float = 0.0  # since when it lacks room
    is_running: bool = False  # its launcher has said so
    is_up: bool = False  # it has asked for work, or sent a heartbeat
    since: float = 0.0  # when it was planned, has registered, or this master began
    interval_seconds: float = 0.0  # longest time until its next heartbeat, as both sides know
    usage: Usage | None = None  # as it said last
    waits_for: str = ""  # the source that a worker cannot read, as it said last
    newest_request: int = 0  # for a task: the worker has an answer to all before it
    is_told_to_wait: bool = False  # by an answer to another attempt at that request

    def is_process(self, handle: str) -> bool:
        """Whether a handle is of this process; "" is the handle of one that could not start."""
        return self.handle == handle if self.handle else not handle or handle != self.before

    @property
    def is_departing(self) -> bool:
        """Whether it gets no more work, and is not counted on."""
        return self.is_stopping or self.is_leaving

    @property
    def is_alive(self) -> bool:
        """Whether it has spoken and was not lost since."""
        return bool(self.session) and not self.gone

    @property
    def state(self) -> str:
        """The state of the process: planned, starting, alive, leaving, gone."""
        if self.gone:
            return "gone"
        if self.is_departing:
            return "leaving"
        if self.session:
            return "alive"
        return "starting" if self.handle else "planned"

    @property
    def is_dead(self) -> bool:
        """Whether it is a worker of which nothing more can come."""
        is_by_hand = bool(self.session) and not self.handle  # nobody will tell that it has ended
        return self.role is Role.WORKER and bool(self.gone) and (self.has_exited or is_by_hand)

    @property
    def name(self) -> str:
        """The name of the process in messages: "worker 3"."""
        return f"{self.role.words} {self.index}"


_NOT_JOURNALLED = frozenset(
    {
        "last_heard",
        "pending",
        "lacks_room",
        "waits_since",
        "waits_for",
        "is_running",
        "is_up",
        "since",
        "interval_seconds",
        "usage",
        "newest_request",
        "is_told_to_wait",
    }
)
_JOURNALLED = [field.name for field in fields(Member) if field.name not in _NOT_JOURNALLED]


class Membership:
    """The processes of the job.

    Only the last hundred workers that are gone, and whose processes have ended, are kept: a job of
    months has thousands. For the others only the fact stays that the index was used.
    """

    def __init__(
        self,
        journal: Journal,
        heartbeat_timeout_seconds: float,
        forgotten: Callable[[int], None] = lambda index: None,
        heartbeat_seconds: float = 1.0,
    ) -> None:
        """Start without members; `forgotten` is told the index of each worker that is forgotten."""
        self._journal = journal
        self._forgotten = forgotten
        self._heartbeat_timeout_seconds = heartbeat_timeout_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self.tick_seconds = min(_LONGEST_TICK_SECONDS, heartbeat_timeout_seconds / 10)
        """The time between two looks for silent processes."""
        self._members: dict[tuple[Role, int], Member] = {}
        self._next_worker = 0
        self._alive: Counter[Role] | None = None  # how many of each role; None: to be counted
        journal.handle("plan", self._apply_plan)
        journal.handle("started", self._apply_started)
        journal.handle("register", self._apply_register)
        journal.handle("stopping", self._apply_stopping)
        journal.handle("leaving", self._apply_leaving)
        journal.handle("gone", self._apply_gone)
        journal.handle("exited", self._apply_exited)

    # --- events ----------------------------------------------------------------------------------

    def plan(self, role: Role, now: float, index: int | None = None) -> Member:
        """Decide on a new process; a worker gets the next index."""
        index = self._next_worker if index is None else index
        self._journal.record("plan", str(role), index)
        member = self._members[role, index]
        member.last_heard = member.since = now
        return member

    def started(self, role: Role, index: int, handle: str, now: float) -> None:
        """Note that the launcher has started a planned process."""
        self._journal.record("started", str(role), index, handle)
        self._members[role, index].last_heard = now

    def pending(self, member: Member, why: str, lacks_room: bool, now: float) -> None:
        """Note that a process waits to be started, perhaps for room."""
        if lacks_room and not member.lacks_room:
            member.waits_since = now
        member.pending, member.lacks_room = why, lacks_room

    def runs(self, member: Member, now: float) -> None:
        """Note that a process runs; from now on it is expected to speak."""
        member.pending, member.lacks_room = "", False
        member.is_running, member.last_heard = True, now

    def register(
        self, role: Role, index: int, session: str, pid: int, address: str, now: float
    ) -> Member:
        """Take a process in that announces itself; harmless when repeated.

        A process that nobody planned (started by hand) is welcome too.
        """
        member = self._members.get((role, index))
        if member is None or member.session != session:
            self._journal.record("register", str(role), index, session, pid, address)
            member = self._members[role, index]
            member.since = now
        member.last_heard = now
        return member

    def heard(self, role: Role, index: int, session: str, now: float) -> Member | None:
        """Note a sign of life; return its member if it is a living one.

        A process that is still starting may give signs of life too. A ps replica may restore for a
        long time, and registers only after it.
        """
        # A replica that restores has no session with the master yet, so none is compared.
        member = self._members.get((role, index))
        if member is not None and role is Role.PS and not (member.session or member.gone):
            member.last_heard = now
            return None
        if member is None or member.session != session or member.gone:
            return None
        member.last_heard, member.is_up = now, True
        return member

    def tell_other(self, role: Role, index: int, session: str) -> float:
        """Return how long a process that is no living member is to wait until its next heartbeat.

        A master may die before it has ended a ps replica that it gave up, or before it has noted
        one that it started. Nobody would end such a replica; it ends itself when it hears of this.

        Raises:
            ElasticdlError: The place of the replica is lost.
        """
        member = self._members.get((role, index))
        is_starting = member is not None and not (member.session or member.gone)
        if member is None or is_starting or role is not Role.PS or not session:
            return self.interval_seconds
        if member.session != session:
            raise ElasticdlError(
                f"{member.name} has lost its place to process {member.pid} at {member.address}"
            )
        raise ElasticdlError(f"{member.name} was given up: it {member.gone}")

    def tell_interval(self, member: Member, said_seconds: float) -> float:
        """Return how long a process is to wait until its next heartbeat.

        The answer may get lost. So silence is measured by the longer of the new interval and the
        interval that the process keeps now.

        Args:
            member: The process.
            said_seconds: The interval that the process keeps; 0: the one that the user asked for.
        """
        interval = self.interval_seconds
        member.interval_seconds = max(said_seconds, interval)
        return interval

    def stopping(self, member: Member) -> None:
        """Note that a process was asked to end."""
        self._journal.record("stopping", str(member.role), member.index)

    def leaving(self, member: Member) -> None:
        """Note that somebody else has asked a process to end."""
        self._journal.record("leaving", str(member.role), member.index)

    def lose(self, member: Member, why: str) -> None:
        """Give a process up, for good."""
        self._journal.record("gone", str(member.role), member.index, why)

    def exited(self, member: Member) -> None:
        """Note that a process has ended."""
        self._journal.record("exited", str(member.role), member.index)

    def silent(self, now: float) -> list[Member]:
        """Return the members that should have been heard of by now; not those that are pending."""
        return [
            member
            for member in self._members.values()
            if not member.gone
            and (member.is_running or member.session)
            and now - member.last_heard
            # A process that starts may take minutes to import its framework.
            > (self._timeout_seconds(member) if member.is_up else START_TIMEOUT_SECONDS)
        ]

    def _timeout_seconds(self, member: Member) -> float:
        return heartbeats.timeout_seconds(
            self._heartbeat_timeout_seconds, self._heartbeat_seconds, member.interval_seconds
        )

    def excuse(self, seconds: float, now: float) -> None:
        """Do not count so much of everybody's silence: nobody was listening meanwhile."""
        for member in self._members.values():
            member.last_heard = min(now, member.last_heard + seconds)

    def heard_all(self, now: float) -> None:
        """Give everybody a full timeout: what was heard before is not known."""
        for member in self._members.values():
            member.last_heard = member.since = now

    # --- questions -------------------------------------------------------------------------------

    def find(self, role: Role, index: int) -> Member | None:
        """Return the process at an index, whatever became of it."""
        return self._members.get((role, index))

    def has_been(self, role: Role, index: int) -> bool:
        """Whether there was ever a process at an index, also if it is forgotten."""
        return (role, index) in self._members or (role is Role.WORKER and index < self._next_worker)

    def present(self, role: Role) -> list[Member]:
        """Return the processes that are planned, starting or alive."""
        return [m for m in self._members.values() if m.role is role and not m.gone]

    def want_checkpoint(self) -> bool:
        """Whether the redo log of a ps replica is filling up."""
        present = self.present(Role.PS)
        return any(each.usage is not None and each.usage.wants_checkpoint for each in present)

    def num_alive(self, role: Role) -> int:
        """Return how many processes have spoken and were not lost since."""
        if self._alive is None:  # something was recorded: else nobody has to be looked at
            self._alive = Counter(m.role for m in self._members.values() if m.is_alive)
        return self._alive[role]

    @property
    def interval_seconds(self) -> float:
        """How often each process sends a heartbeat, for the number of those that are alive."""
        num_alive = sum(self.num_alive(role) for role in Role)
        return heartbeats.interval_seconds(num_alive, self._heartbeat_seconds)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    # --- facts -----------------------------------------------------------------------------------

    def _apply_plan(self, role: str, index: int) -> None:
        self._alive = None
        before = self._members.get((Role(role), index))
        # The process before may still run. Its end must not be taken for the end of the new one.
        handle = "" if before is None or before.has_exited else before.handle
        self._members[Role(role), index] = Member(Role(role), index, before=handle)
        if role == Role.WORKER:
            self._next_worker = max(self._next_worker, index + 1)

    def _apply_started(self, role: str, index: int, handle: str) -> None:
        self._members[Role(role), index].handle = handle

    def _apply_register(self, role: str, index: int, session: str, pid: int, address: str) -> None:
        member = self._members.get((Role(role), index))
        if member is None:
            self._apply_plan(role, index)
            member = self._members[Role(role), index]
        self._alive = None
        if member.session or member.gone or member.has_exited:
            # A new process is at this index, so the state of the process before does not count.
            # If there was none before, `is_stopping` stays: it was asked of this process while it
            # was being started.
            member.gone, member.has_exited = "", False
            member.is_stopping = member.is_leaving = False
        member.session, member.pid, member.address = session, pid, address
        member.incarnation += 1

    def _apply_stopping(self, role: str, index: int) -> None:
        self._members[Role(role), index].is_stopping = True

    def _apply_leaving(self, role: str, index: int) -> None:
        self._members[Role(role), index].is_leaving = True

    def _apply_gone(self, role: str, index: int, why: str) -> None:
        self._alive = None
        self._members[Role(role), index].gone = why
        self._forget_dead(Role(role), index)

    def _apply_exited(self, role: str, index: int) -> None:
        self._members[Role(role), index].has_exited = True
        self._forget_dead(Role(role), index)

    def _forget_dead(self, role: Role, index: int) -> None:
        """Move a dead worker to the end, and forget the workers that have long been dead."""
        if role is Role.WORKER and self._members[role, index].is_dead:
            self._members[role, index] = self._members.pop((role, index))
            dead = [key for key, member in self._members.items() if member.is_dead]
            for key in dead[:-_DEAD_KEPT]:
                del self._members[key]
                self._forgotten(key[1])

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        members = [
            {name: getattr(member, name) for name in _JOURNALLED}
            for member in self._members.values()
        ]
        return {"members": members, "next_worker": self._next_worker}

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        found = [
            Member(**({name: m[name] for name in _JOURNALLED} | {"role": Role(m["role"])}))
            for m in snapshot["members"]
        ]
        self._alive = None
        self._members = {(member.role, member.index): member for member in found}
        self._next_worker = snapshot["next_worker"]
