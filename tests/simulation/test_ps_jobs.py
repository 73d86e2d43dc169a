"""Thousands of jobs with ps replicas, and what goes wrong in them: see `ps_job.py` and `faults.py`.

Each sabotage takes away one thing that counts depend on. A simulation that does not find it would
not find a fault of that kind either.
"""

from pathlib import Path
from unittest import mock

import pytest

from elasticdl._core import Store
from elasticdl.master.actions import DeleteHandOvers
from elasticdl.master.core import JobCore
from elasticdl.master.durable import DurableJob
from elasticdl.master.interpreter import Interpreter, Line
from elasticdl.master.ledger import Ledger
from elasticdl.master.membership import Member
from elasticdl.master.moves import leading
from elasticdl.master.moves.facts import Moves
from elasticdl.master.moves.steps import Hold, Release
from elasticdl.master.parameters.recoveries import Recoveries
from elasticdl.master.replays import Replays
from tests.simulation.faults import (
    PROCESS_FAULTS,
    Many,
    a_move_at_the_end,
    asked_to_end_again,
    asked_to_end_in_a_move,
    drawn,
    folder_in_memory,
)
from tests.simulation.master import Journal
from tests.simulation.ps_job import PsJob
from tests.simulation.stream_job import StreamJob

SEEDS = [range(first, first + 50) for first in range(0, 300, 50)]  # others: `make nightly`


@pytest.fixture
def folder():
    with folder_in_memory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_every_record_counts_once_whatever_goes_wrong(seeds, folder):
    if (story := Many(folder).first_of(seeds)) is not None:
        pytest.fail(story)


def test_the_same_seed_and_faults_are_the_same_run(folder):
    stories = [Many(folder).run(7)[1].scheduler.story for _ in range(2)]
    assert stories[0] == stories[1]


class WithoutNames(PsJob):
    """Each push is of a task of its own."""

    def named(self, task, lease, index):
        return task + 1_000_000 * (1 + self.scheduler.count("push")), 1, 0


class KnownByTheFirst(PsJob):
    """A frame of several gradients is known by its first: where that is there, all are."""

    def pushed_each(self, client, steps, task, lease, index):
        (audit,) = client.audit()
        applied = {of: next_index for of, next_index, _ in audit.tolist()}.get(task, 0)
        if applied <= index:
            return super().pushed_each(client, steps, task, lease, index)
        for left_out in range(applied, index + len(steps)):
            client.skip(task, lease, left_out)
        return 0, 0


class WithoutMarks(PsJob):
    """A replica never hears of minibatches that it has no key of."""

    def owed(self, computed):
        return []


class WithMarksAtLast(PsJob):
    """A replica hears of minibatches after those that they come before."""

    def frame(self, owed, computed):
        return computed + owed


class SparedByTheFirst(PsJob):
    """A replica is spared a frame of several gradients if it has no key of the first."""

    def is_without(self, keys):
        return not len(keys[0])


class WithMarksAfterReports(PsJob):
    """The master hears of a minibatch before a replica that has no key of it."""

    settles_before_report = False


class WithoutGenerations(PsJob):
    """Workers take a lease before they know where the replicas are that it speaks of."""

    def is_ahead(self, lease, route):
        return False


class WithoutWatermarks(PsJob):
    """A replica that is restored has forgotten what it has applied."""

    def restore(self, folder, replica, num_replicas):
        return Store.restore(str(folder), replica, num_replicas, keep_watermarks=False)


class WithoutFences(PsJob):
    """To the replicas all leases of a task are one."""

    def fence(self, lease):
        return 1

    def named(self, task, lease, index):
        return task, 1, index


class WithoutSyncs(PsJob):
    """The disk says that it has synced, and has not: files are renamed before they are there."""

    def __init__(self, seed, faults, folder):
        super().__init__(seed, faults, folder)
        self.disk.is_lying = True


class WithoutHold(PsJob):
    """A replica that a move holds lets in what is of its layout."""

    def entrance(self, node, layout, updates):
        is_now, told = super().entrance(node, layout, updates)
        is_held = layout == node.layout and node.driven.store is not None
        return is_now or is_held, told


class WithoutStop(PsJob):
    """A replica that is asked to end answers on while it writes."""

    serves_while_leaving = True


class WithoutOneLayout(PsJob):
    """The replicas are asked for what all hold while some of them serve the layout before."""

    checks_layouts = False

    def run(self):
        with mock.patch.object(Moves, "is_being_told", False):
            super().run()


class WithoutRefusal(StreamJob):
    """A replica that comes back lets in leases of before, whatever it lacks."""

    def refuses_before(self, store, first_lease):
        pass


class WithoutSorting(StreamJob):
    """What comes back is trained again in the order in which it came."""

    def run(self):
        with mock.patch.object(Replays, "_sort"):
            super().run()


def no_look_at_the_layout_of_a_hand_over(monkeypatch):
    """A replica that may not have heard of a move hands over its part of the layout before."""
    monkeypatch.setattr(Moves, "has_gone_over", lambda moves, member: True)


def deletions_decided_too_early(monkeypatch):
    """Which hand-overs stay is decided before it is known which there are."""

    def delete(interpreter, action):
        kept = interpreter._core.parameters.kept_hand_overs(action.role)
        parameters = interpreter._core.parameters

        def effect():
            with mock.patch.object(parameters, "kept_hand_overs", return_value=kept):
                interpreter._delete_hand_overs(action.role)()
            return lambda: None

        interpreter._run(effect, Line.STORAGE)

    carry_out = Interpreter.carry_out

    def decide(interpreter, action):
        is_it = isinstance(action, DeleteHandOvers)
        (delete if is_it else carry_out)(interpreter, action)

    monkeypatch.setattr(Interpreter, "carry_out", decide)


def no_sync_before_deletions(monkeypatch):
    monkeypatch.setattr(Journal, "sync", lambda journal: None)


def no_proof_of_hand_overs(monkeypatch):
    """Whatever a predecessor has handed over is taken for all that was ever applied."""
    take_in = Recoveries.take_in

    def believe(recoveries, member, applied, now):
        _, session = recoveries._begins(member.index)
        with pytest.MonkeyPatch.context() as patch:
            if session:
                patch.setattr(Ledger, "replay", lambda *_, **__: [])
            return take_in(recoveries, member, applied, now)

    monkeypatch.setattr(Recoveries, "take_in", believe)


def no_replay(monkeypatch):
    monkeypatch.setattr(Ledger, "replay", lambda *_, **__: [])


def no_journal_before_answers(monkeypatch):
    def handle(job, event):
        answer = job.happen(event)
        late, job.late = getattr(job, "late", []), job.core.journal.take()
        job._state.append(late)
        return answer, job.core.take_actions()

    monkeypatch.setattr(DurableJob, "handle", handle)


def no_agreement(monkeypatch):
    """Whatever replicas have applied, a move takes it for the same."""
    monkeypatch.setattr(leading, "do_agree", lambda marks: True)


def no_instant(monkeypatch):
    """All write their parts of a move's checkpoint a little after they had applied the same."""
    agree = leading.MoveSteps._agree

    def agree_too_early(steps, first):
        hold, marks = yield from agree(steps, first)
        if first == 1:
            yield from steps._each(steps._now, Release(steps._number, hold))
            yield leading.Pause(0.1)
            hold += 1
            yield from steps._each(steps._now, Hold(steps._number, hold))
        return hold, marks

    monkeypatch.setattr(leading.MoveSteps, "_agree", agree_too_early)


def no_late_attempts(monkeypatch):
    lease = JobCore.lease

    def forget_requests(core, *arguments):
        for member in core.members:
            member.newest_request = 0
        return lease(core, *arguments)

    assert hasattr(Member("worker", 0), "newest_request")
    monkeypatch.setattr(JobCore, "lease", forget_requests)


# What each takes away, the faults that show it, and a seed shortly before the first that does.
SABOTAGES = {
    "deduplication": (WithoutNames, PROCESS_FAULTS, 0),
    "names within a frame": (KnownByTheFirst, PROCESS_FAULTS, 200),
    "marks that are owed": (WithoutMarks, PROCESS_FAULTS, 0),
    "the order of marks": (WithMarksAtLast, PROCESS_FAULTS, 20),
    "keys of a whole frame": (SparedByTheFirst, PROCESS_FAULTS, 50),
    "marks before reports": (WithMarksAfterReports, ["kill worker", "pause worker"], 80),
    "fences": (WithoutFences, ["pause worker", "cut off worker"], 310),
    "generations": (WithoutGenerations, ["cut off ps", "pause ps", "kill worker"], 20),
    "watermarks of a checkpoint": (WithoutWatermarks, PROCESS_FAULTS, 0),
    "replay": (no_replay, PROCESS_FAULTS, 0),
    "the journal before answers": (no_journal_before_answers, ["kill master"], 0),
    "files synced before they are renamed": (WithoutSyncs, ["power fails"], 0),
    "the journal synced before deletions": (no_sync_before_deletions, ["power fails"], 300),
    "the proof of a hand-over": (no_proof_of_hand_overs, ["ask ps to end", "kill ps"], 160),
    "silence while a hand-over is written": (WithoutStop, ["ask ps to end"], 370),
    "the refusal of earlier leases": (WithoutRefusal, PROCESS_FAULTS, 0),
    "the order of what comes back": (WithoutSorting, ["kill ps", "kill worker"], 610),
    "late attempts": (no_late_attempts, PROCESS_FAULTS, 40),
    "agreement before a move": (no_agreement, ["kill worker"], 60),
    "hold in a move": (WithoutHold, ["kill worker"], 60),
    "one instant of a move's checkpoint": (no_instant, ["kill ps"], 3230),
    "one layout that all serve": (WithoutOneLayout, a_move_at_the_end, 10),
    "the layout of a hand-over": (no_look_at_the_layout_of_a_hand_over, asked_to_end_in_a_move, 80),
    "deletions decided late": (deletions_decided_too_early, asked_to_end_again, 740),
}


@pytest.mark.parametrize("what", SABOTAGES)
def test_a_job_without_one_of_its_safeguards_is_found(what, folder, monkeypatch):
    sabotage, faults, first = SABOTAGES[what]
    kind = sabotage if isinstance(sabotage, type) else PsJob
    if kind is PsJob:
        sabotage(monkeypatch)
    runs = map(Many(folder, kind, faults).run, range(first, 10_000))
    wrong = next(found for found, _ in runs if found is not None)
    assert "Error: " not in wrong  # of the sabotage itself


def test_a_story_has_the_fewest_faults_with_which_the_job_goes_wrong(folder):
    many = Many(folder, WithoutWatermarks)
    wrong, _ = many.run(1)
    _, *story = many.story(1, wrong).splitlines()
    faults = [fault for fault in drawn(1) if str(fault) in story]
    assert many.run(1, faults)[0] is not None
    assert all(many.run(1, [f for f in faults if f is not one])[0] is None for one in faults)
    assert len(faults) < len(drawn(1))
