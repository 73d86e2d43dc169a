"""The job and its journal: what was decided is written down before anybody hears of it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

from elasticdl.checkpoints.versions import begun_with
from elasticdl.config import (
    JobConfig,
    completed,
    free_settings,
    shown_setting,
    shown_settings,
)
from elasticdl.errors import ConfigError, JobFailedError, UnusableStateError
from elasticdl.job import Shard
from elasticdl.master.actions import Action
from elasticdl.master.core import JobCore
from elasticdl.master.features.callbacks import Callbacks
from elasticdl.master.history import AT_REST
from elasticdl.master.phases import ENDED
from elasticdl.master.tasks import growth_of, make_tasks
from elasticdl.state.base import Fact, Snapshot, State

_FORMAT = 2  # format of the facts, and of the order of tasks that they imply
_FACTS_PER_SNAPSHOT = 20_000
_SECONDS_BETWEEN_TIMES = 1.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobData:
    """The shards of a job, as they were when it began."""

    training: tuple[Shard, ...] = ()
    validation: tuple[Shard, ...] = ()
    prediction: tuple[Shard, ...] = ()

    def checked(self, config: JobConfig) -> JobData:
        """Return the same data, if a job that trains and is to evaluate has records for that.

        Raises:
            JobFailedError: It has none, and there would be no evaluation.
        """
        data = config.data
        has_some = any(shard.num_records for shard in self.validation)
        if config.command != "train" or not data.evaluates or has_some:
            return self
        if data.validation_split:
            raise JobFailedError(
                f"--validation_split={data.validation_split:g}: none of the records of "
                f"{config.trains_on} is held out, for they are few: give a larger part"
            )
        raise JobFailedError(
            f"--validation_data={data.validation_data}: expected records, found none; leave the "
            "flag out to train without evaluations"
        )


@dataclass(frozen=True, slots=True)
class Write:
    """Facts to be written, and the state after them if it is to replace all that was written."""

    facts: list[Fact]
    snapshot: Snapshot | None = None


class DurableJob:
    """A `JobCore` whose facts are in a `State` before its answers and actions leave.

    Not for several threads at once; whoever owns it has a lock or an event loop. It is used in one
    of two ways: `handle` has an event happen and writes it; or many events `happen`, and one write
    of all their facts is taken and done in a thread (`elasticdl.master.group_commit`).

    Its time is journalled too, so that no jump of a clock changes it: a master goes on at the time
    at which the one before has ended. The pause between the two does not count.
    """

    def __init__(
        self,
        core: JobCore,
        state: State,
        created: Fact,
        num_facts: int,
        clock: Callable[[], float],
    ) -> None:
        """See `open_job`."""
        self.core = core
        self._state = state
        self._created = created
        self._num_facts = num_facts  # facts in the journal since its last snapshot
        self._clock = clock
        self._began = clock()  # when this process took the job up,
        self._seconds_before = 0.0  # which had lasted so long then
        self._noted_seconds = 0.0
        self.port = 0
        core.journal.handle("port", self._apply_port)
        core.journal.handle("time", self._apply_time)

    @property
    def id(self) -> str:
        """The identity of the job, drawn when the job began."""
        return str(self._created[3])

    def now(self) -> float:
        """Seconds that the job has lasted."""
        return self._seconds_before + self._clock() - self._began

    def happen(self, event: Callable[[], T]) -> T:
        """Have an event happen; return its answer, which nobody may hear before it is written."""
        answer = event()
        now = self.now()
        if now - self._noted_seconds >= _SECONDS_BETWEEN_TIMES:
            self.core.journal.record("time", round(now, 3))
        return answer

    def handle(self, event: Callable[[], T]) -> tuple[T, list[Action]]:
        """Have an event happen and write it; return its answer, and the actions to carry out.

        Raises:
            StateError: The event's facts could not be written. The core is then ahead of the
                journal, so the master must end.
        """
        answer = self.happen(event)
        write = self.take_write()
        self.append(write)
        if write.snapshot is not None:
            self.compact(write)
        return answer, self.core.take_actions()

    def listen_at(self, port: int) -> None:
        """An event: the master has a port, which a restarted master takes again."""
        if port != self.port:
            self.core.journal.record("port", port)

    @property
    def journal_trouble(self) -> str:
        """Why a write of the journal takes so long, as far as it knows."""
        return self._state.trouble

    def sync(self) -> None:
        """Make sure that the written facts outlast a machine that loses power; in any thread."""
        self._state.sync()

    def close(self) -> None:
        """Let go of the journal."""
        self._state.close()

    def take_write(self) -> Write:
        """Take the next write: all facts that are not written, and a snapshot if one is due.

        The caller hands each write to `append` and `compact` before it takes the next one. Any
        thread may do so.
        """
        # A snapshot has the state after these facts. So it is made here, in the thread of the
        # events, and before the next event happens.
        facts = self.core.journal.take()
        self._num_facts += len(facts)
        if self._num_facts < _FACTS_PER_SNAPSHOT:
            return Write(facts)
        self._num_facts = 0
        return Write(facts, self._snapshot())

    def append(self, write: Write) -> None:
        """Write facts; they are durable when it returns."""
        if write.facts:
            self._state.append(write.facts)

    def compact(self, write: Write) -> None:
        """Replace all that was written by a snapshot."""
        assert write.snapshot is not None
        self._state.compact(write.snapshot)

    def _snapshot(self) -> Snapshot:
        return {
            "created": self._created,
            "port": self.port,
            "time": self._noted_seconds,
            "core": self.core.snapshot(),
        }

    def _apply_port(self, port: int) -> None:
        self.port = port

    def _apply_time(self, seconds: float) -> None:
        self._noted_seconds = seconds

    def _replay(self, snapshot: Snapshot | None, facts: list[Fact]) -> None:
        if snapshot is not None:
            self.port = snapshot["port"]
            self._noted_seconds = snapshot["time"]
            self.core.restore(snapshot["core"])
        for fact in facts:
            self.core.journal.replay(fact)
        # The last noted time may be older than the last fact, by the seconds between two notes.
        # The pause is added so that time never goes back.
        self._seconds_before = self._noted_seconds + _SECONDS_BETWEEN_TIMES


def open_job(
    state: State,
    config: JobConfig,
    load: Callable[[], JobData],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[DurableJob, bool]:
    """Take up the job that is in a journal, or begin a new one; return it, and whether it is new.

    A job keeps the shards with which it began: files that come or go later change nothing.

    Args:
        state: The journal.
        config: The job's settings.
        load: Lists the shards; called for a new job only.
        clock: Seconds since any moment; never goes back.

    Raises:
        ConfigError: The job in the journal was begun with other settings; names them.
        StateError: The journal cannot be read, or does not fit together.
        DataError: The data cannot be opened.
        JobFailedError: There are no records.
    """
    snapshot, facts = state.load()
    if snapshot is None and not facts:
        data = load()
        growth = growth_of(config, sum(shard.num_records for shard in data.training))
        core = _make_core(config, data, growth)  # before anything is written: it may be refused
        init = config.checkpoint.checkpoint_dir_for_init
        if init is not None and config.command == "train":
            core.features.of(Callbacks).begin_with(begun_with(init), config.training.learning_rate)
        # The shards are kept with the job: task ids follow from them, and files may change later.
        created: Fact = ["created", config.shown(), _shards(data), uuid.uuid4().hex, _FORMAT]
        created += [growth] if growth > 1 else []
        state.append([created])
        return DurableJob(core, state, created, 1, clock), True
    created = facts.pop(0) if snapshot is None else snapshot["created"]
    if created[0] != "created":
        raise UnusableStateError(
            f"the job's journal begins with {created[0]!r}, expected 'created'"
        )
    if created[4:5] != [_FORMAT]:
        raise UnusableStateError(
            f"the job in the journal was begun by another version of elasticdl (format "
            f"{created[4] if len(created) > 4 else 1}, expected {_FORMAT}), which hands out tasks "
            "in another order; go on with that version, or begin a new job from its last "
            "checkpoint (--checkpoint_dir_for_init)"
        )
    _check_same(created[1], config.shown(), config.model.model_changes)
    core = _make_core(config, _data(created[2]), *created[5:])
    job = DurableJob(core, state, created, len(facts), clock)
    job._replay(snapshot, facts)
    return job, False


def _make_core(config: JobConfig, data: JobData, growth: int = 1) -> JobCore:
    shards = data.training, data.validation, data.prediction
    return JobCore(config, make_tasks(config, *shards, growth))


def _shards(data: JobData) -> list[list[list[Any]]]:
    return [
        [list(astuple(shard)) for shard in shards]
        for shards in (data.training, data.validation, data.prediction)
    ]


def _data(shards: list[list[list[Any]]]) -> JobData:
    training, validation, prediction = (
        tuple(Shard(name, start, end) for name, start, end in part) for part in shards
    )
    return JobData(training, validation, prediction)


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job: "finished" or "failed", with the message.

    goes_on: the same command may go on with the job: see `reopen`.
    """

    how: str
    message: str
    goes_on: bool = False


def end_of_job(state: State) -> JobEnd | None:
    """Return how the job in a journal has ended; None if it has not.

    Raises:
        StateError: The journal cannot be read.
    """
    snapshot, facts = state.load()
    # The newest fact decides: a job may have ended and been reopened several times.
    for name, *values in reversed(facts):
        if name == "reopened":
            return None
        if name == "ended":
            how, message, _, *goes_on = values
            return JobEnd(how, message, any(goes_on))
    if snapshot is not None:
        history = snapshot["core"]["history"]
        if history["phase"] in ENDED:
            _, goes_on, *_ = history.get("ways_on", [False, False])
            return JobEnd(history["phase"], history["message"], goes_on)
    return None


def reopen(state: State) -> None:
    """Have the next master go on with a job that has failed, if it can.

    The next master tries again the tasks that were set aside, and repeats the steps after training.

    Raises:
        StateError: The journal cannot be read or written.
    """
    end = end_of_job(state)
    if end is not None and end.goes_on:
        state.append([["reopened"]])


def model_change(state: State) -> str:
    """Return how far a change of the model is; see `JobHistory.model_change`.

    Raises:
        StateError: The journal cannot be read.
    """
    snapshot, facts = state.load()
    for name, *values in reversed(facts):
        if name == "model changes":
            return str(values[0])
        if name == "model at rest":
            return AT_REST
    return "" if snapshot is None else str(snapshot["core"]["history"].get("model_change", ""))


def change_model(state: State, how: str) -> None:
    """Have the next master end what is begun (`BEGUN_FIRST`), or go on by the other model ("").

    Raises:
        StateError: The journal cannot be read or written.
    """
    if model_change(state) != how:
        state.append([["model changes", how]])


def differing_flags(
    before: Mapping[str, object], now: Mapping[str, object], may_model_change: bool = False
) -> list[str]:
    """Return a line for each setting that differs: its old value and its new value.

    The job's folder may have moved, because the job is what lies in the folder. Settings of
    displays and those that packages leave free may differ too. A setting that is younger than the
    job counts as one that nobody has set.

    Args:
        before: The configuration with which the job began.
        now: The configuration with which the job is to go on.
        may_model_change: Whether the settings of the model may differ.
    """
    free = ["seeing.", *(["model."] if may_model_change else [])]
    others = {"job_dir", *free_settings()}
    return [
        f"--{name.rpartition('.')[2]} was {_shown(name, old)}, is {_shown(name, new)}"
        for name, old, new in _differences("", completed(before), now)
        if name.rpartition(".")[2] not in others and not name.startswith(tuple(free))
    ]


def _shown(name: str, value: object) -> str:
    return json.dumps(shown_setting(name.rpartition(".")[2], value))


def _check_same(
    before: Mapping[str, object], now: Mapping[str, object], may_model_change: bool
) -> None:
    # An earlier version may have written what is not shown now.
    differing = differing_flags(shown_settings(before), now, may_model_change)
    if differing:
        raise ConfigError(
            "the job in this folder was begun with other settings: "
            + "; ".join(differing)
            + ". Resume it with the same ones, or begin a new job in another --job_dir"
        )


def _differences(
    prefix: str, before: Mapping[str, object], now: Mapping[str, object]
) -> list[tuple[str, object, object]]:
    found: list[tuple[str, object, object]] = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(f"{prefix}{name}.", old, new)
        elif old != new:
            found.append((prefix + name, old, new))
    return found
