"""The model moves to another number of ps replicas, and somebody is lost at each moment of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from elasticdl.errors import ConfigError, ElasticdlError, UnavailableError
from elasticdl.job import Lease, PsRoute, Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master.actions import (
    AskAudit,
    ExpireRows,
    Note,
    StartProcess,
    StopProcess,
    WriteCheckpoint,
)
from elasticdl.master.moves.leading import (
    MoveRefusedError,
    check_room,
    do_agree,
    merged,
    next_of_tasks,
)
from elasticdl.master.moves.messages import (
    AbandonMove,
    LostInMove,
    MoveFailed,
    MovePrepared,
    MoveTold,
    PrepareMove,
    PsProcess,
    TellMoved,
)
from elasticdl.master.moves.mover import Mover
from elasticdl.master.moves.steps import ReplicaMarks
from elasticdl.master.parameters.schedule import WholeCheckpoint
from elasticdl.master.phases import Phase


class MovingGame:
    """A job on two ps replicas, of which `Game` plays the rest."""

    def __init__(self, game):
        self.game = game
        self.leased = game.play.lease()
        game.play.do(StartProcess)

    @property
    def core(self):
        return self.game.core

    def one(self, kind):
        (found,) = self.game.play.do(kind)
        return found

    def want(self, count):
        self.core.set_num_ps(count, self.game.play.now)

    def begin(self, count):
        """Have the replicas that are to come register; return what is to be prepared."""
        self.want(count)
        for start in self.game.play.do(StartProcess):
            assert self.core.parameters.restore_point(start.index) is None
            assert self.place(start.index) == (count, 0, True)
            self.game.play.register_ps(start.index)
        return self.one(PrepareMove)

    def place(self, index):
        return self.core.parameters.replicas_with(index).place_of(index)

    def answer(self, answer):
        self.core.answered(answer, self.game.play.now)

    def move(self, count):
        done = self.begin(count)
        self.answer(MovePrepared(done))
        tell = self.one(TellMoved)
        self.answer(MoveTold(tell.layout, is_everybody=True))
        return done, tell

    def route(self):
        return self.core.parameters.route


@pytest.fixture
def job(recovery_game):
    return MovingGame(recovery_game())


def test_from_two_to_three_to_one(job):
    done, tell = job.move(3)
    assert [seated.index for seated in done.now] == [0, 1]
    assert [seated.index for seated in done.after] == [0, 1, 2]
    assert tell.addresses == ("host:0", "host:1", "host:2")
    # Leases of before are as good as ever: nothing was lost.
    assert job.route() == PsRoute(0, tell.addresses, 1)
    job.game.play.work_off(job.leased)
    assert isinstance(job.game.play.lease(), Lease)
    _, tell = job.move(1)
    assert [seated.index for seated in tell.whom] == [0, 1, 2]
    assert job.route() == PsRoute(0, ("host:0",), 2)
    assert [stop.handle.index for stop in job.game.play.do(StopProcess)] == [1, 2]
    for index in (1, 2):
        exited = Exited(ProcessHandle(Role.PS, index, ""), ExitReason.PREEMPTED, 143)
        job.core.process_exited(exited, job.game.play.now)
    assert job.game.play.do(StartProcess) == []
    job.game.master_restarts()
    assert job.route() == PsRoute(0, ("host:0",), 2)


def test_a_master_that_is_killed_before_the_model_has_moved_gives_the_move_up(job):
    done = job.begin(3)
    job.game.master_restarts()
    assert job.one(AbandonMove).layout == done.layout
    assert job.route() == PsRoute(0, ("host:0", "host:1"), 0)
    again = job.one(PrepareMove)
    assert again.layout == done.layout + 1
    # What the master before had asked for comes to nothing, whatever is said of it.
    assert job.route().layout == 0


def test_a_master_that_is_killed_after_it_goes_on_to_tell_it(job):
    done = job.begin(3)
    job.answer(MovePrepared(done))
    told = job.one(TellMoved)
    job.game.master_restarts()
    assert job.one(TellMoved) == told
    with pytest.raises(ElasticdlError, match="moves to 3 ps replicas now"):
        job.want(2)
    job.answer(MoveTold(told.layout, is_everybody=True))
    job.want(2)


def test_a_replica_that_is_lost_before_the_model_has_moved_ends_the_try(job):
    done = job.begin(3)
    job.game.lose(2)
    job.answer(MovePrepared(done))
    assert job.one(AbandonMove).layout == done.layout
    assert job.game.play.do(TellMoved) == []
    assert job.route().layout == 0
    assert [start.index for start in job.game.play.do(StartProcess)] == [2]
    job.game.play.register_ps(2, session="another")
    job.game.play.now += 2.0
    job.core.tick(job.game.play.now)
    done = job.one(PrepareMove)
    assert done.after[2].session == "another"
    job.answer(MovePrepared(done))
    assert job.route().layout == done.layout


def test_who_leads_a_move_hears_of_replicas_that_are_lost_in_it_alone(job):
    done = job.begin(3)
    job.game.lose(2)
    assert job.one(LostInMove).session == done.after[2].session
    job.game.play.register_ps(2, session="another")
    job.answer(MovePrepared(done))
    job.game.play.now += 2.0
    job.core.tick(job.game.play.now)
    job.answer(MovePrepared(job.one(PrepareMove)))
    job.game.lose(2)  # before it was told
    assert job.one(LostInMove).session == "another"
    job.answer(MoveTold(job.one(TellMoved).layout, is_everybody=True))
    job.game.lose(0)
    assert job.game.play.do(LostInMove) == []


def starts(job):
    return [start.index for start in job.game.play.do(StartProcess)]


def test_a_job_whose_new_replicas_fail_goes_on_where_it_is(job):
    job.want(3)
    assert starts(job) == [2]
    for _ in range(4):
        job.game.lose(2)
        assert starts(job) == [2]
    job.game.master_restarts()
    job.game.play.do(StartProcess)
    assert job.core.history.failures == 0
    job.game.lose(2)
    assert starts(job) == []
    assert any("the model stays on 2 ps replicas" in note.text for note in job.game.play.do(Note))
    assert isinstance(job.game.play.lease(), Lease)
    job.want(3)  # which may go better now
    assert starts(job) == [2]


def test_a_move_that_waits_for_its_processes_is_called_off_by_asking_for_as_many_as_there_are(job):
    job.want(3)
    with pytest.raises(ElasticdlError, match="ask again when it has, or for 2 to have it stay"):
        job.want(4)
    job.want(2)
    assert starts(job) == [2]
    assert job.game.play.do(StopProcess) == []  # it cannot be ended before it is there
    handle = ProcessHandle(Role.PS, 2, "pid")
    job.core.processes.started(handle, job.game.play.now)
    assert job.one(StopProcess).handle == handle
    job.core.process_exited(Exited(handle, ExitReason.PREEMPTED, 143), job.game.play.now)
    assert starts(job) == []


def test_a_move_that_is_tried_is_not_called_off(job):
    done = job.begin(3)
    with pytest.raises(ElasticdlError, match=r"ask again when it has$"):
        job.want(2)
    job.answer(MoveFailed(done, "out of reach", is_refused=False))
    job.want(2)
    assert job.one(StopProcess).handle.index == 2


def test_a_replica_that_is_lost_after_it_begins_with_the_checkpoint_of_the_move(job):
    done = job.begin(3)
    job.answer(MovePrepared(done))
    for index in (0, 2):
        job.game.lose(index)
        point = job.core.parameters.restore_point(index)
        assert point == WholeCheckpoint(done.version, is_private=True)
        assert job.place(index) == (3, done.layout, False)
        assert job.core.parameters.restore_point(index, 1, "torn") is None
    # It is asked what it lacks before anybody is told where it is.
    session = job.game.comes_up(2)
    assert job.route().addresses[2] == ""
    job.game.back(2, session=session)
    assert job.route().addresses[2] != ""


class OverlappingMove:
    """A move from two replicas to one that is under way while the job goes on to a phase."""

    def __init__(self, game, phase):
        self.job = MovingGame(game)
        self.done = self.job.begin(1)
        if phase is not Phase.TRAINING:
            game.play.work_off(self.job.leased)
            game.until(phase)

    def is_prepared(self):
        self.job.answer(MovePrepared(self.done))

    def is_told(self, is_everybody=True):
        """The replicas have been told; until all have, nothing is asked of them together."""
        tell = self.job.one(TellMoved)
        assert self.job.game.play.do((AskAudit, WriteCheckpoint)) == []
        self.job.answer(MoveTold(tell.layout, is_everybody))

    def is_given_up(self):
        self.job.answer(MoveFailed(self.done, "a ps replica was lost"))

    def is_back(self, index):
        """A lost replica has a successor, with what is in the checkpoint of the move."""
        self.job.game.play.do(StartProcess)
        has = [entry.next_index for entry in self.job.game.play.applied.values()]
        self.job.game.back(index, minibatches=has)

    def is_asked_to_end(self, index):
        return self.job.core.leave(Role.PS, index, "s", self.job.game.play.now).hands_over


def it_moves(move):
    move.is_prepared()
    move.is_told(is_everybody=False)
    move.is_told()


def it_is_given_up(move):
    move.is_given_up()


def a_replica_is_lost_before_it_has_moved(move):
    move.job.game.lose(1)
    move.is_given_up()
    move.is_back(1)


def a_replica_is_lost_after_it_has_moved(move):
    move.is_prepared()
    move.job.game.lose(0)
    move.is_told()
    move.is_back(0)


def a_replica_is_asked_to_end_before_it_has_moved(move):
    assert move.is_asked_to_end(1)
    move.is_prepared()
    assert move.job.one(AbandonMove).layout == move.done.layout
    move.job.game.lose(1)
    move.is_back(1)


def a_replica_is_asked_to_end_before_it_is_told(move):
    move.is_prepared()
    assert not move.is_asked_to_end(0)  # it may hold its part of the layout before
    move.job.game.lose(0)
    move.is_told()
    move.is_back(0)


def a_replica_is_asked_to_end_after_it_is_told(move):
    it_moves(move)
    assert move.is_asked_to_end(0)
    move.job.game.lose(0)
    move.is_back(0)


def the_master_is_killed_before_it_has_moved(move):
    move.job.game.master_restarts()
    assert move.job.one(AbandonMove).layout == move.done.layout


def the_master_is_killed_after_it_has_moved(move):
    move.is_prepared()
    move.job.game.master_restarts()
    move.is_told()


@pytest.mark.parametrize(
    "event",
    [
        it_moves,
        it_is_given_up,
        a_replica_is_lost_before_it_has_moved,
        a_replica_is_lost_after_it_has_moved,
        a_replica_is_asked_to_end_before_it_has_moved,
        a_replica_is_asked_to_end_before_it_is_told,
        a_replica_is_asked_to_end_after_it_is_told,
        the_master_is_killed_before_it_has_moved,
        the_master_is_killed_after_it_has_moved,
    ],
)
@pytest.mark.parametrize(
    "phase",
    [Phase.TRAINING, Phase.EVALUATING, Phase.EXPORTING, Phase.CHECKPOINTING, Phase.AUDITING],
    ids=str,
)
def test_a_move_may_overlap_with_each_phase(phase, event, recovery_game):
    """Each cell of the table in docs/designs/resharding.md."""
    written = {} if phase is Phase.AUDITING else {"checkpoint_dir": Path("c")}
    game = recovery_game(output=Path("model"), **written)
    move = OverlappingMove(game, phase)
    event(move)
    if phase is Phase.TRAINING:
        game.play.work_off(move.job.leased)
        while again := game.play.do(PrepareMove):
            move.job.answer(MoveFailed(again[0], "no room", is_refused=True))
    status = game.finish()
    assert status.status == "finished", status
    assert [(line.repeated, line.lost) for line in status.ledger] == [(0, 0)]


def test_rows_of_an_epoch_that_begins_in_a_move_expire_after_it(recovery_game):
    """Replicas that the move holds would not answer, and the end of the move would wait for it."""
    game = recovery_game(num_epochs=2)
    job = MovingGame(game)
    done = job.begin(3)
    lease = job.leased
    while lease.task.epoch == 0:
        game.play.work_off(lease)
        lease = game.play.lease()
    game.play.work_off(lease)
    assert game.play.do(ExpireRows) == []
    job.answer(MovePrepared(done))
    tell = job.one(TellMoved)
    assert game.play.do(ExpireRows) == []
    job.answer(MoveTold(tell.layout, is_everybody=True))
    job.one(ExpireRows)


def test_a_replica_that_may_not_have_heard_of_the_move_hands_nothing_over(job):
    done = job.begin(3)
    job.answer(MovePrepared(done))
    tell = job.one(TellMoved)

    assert not job.core.leave(Role.PS, 0, "s", job.game.play.now).hands_over

    job.answer(MoveTold(tell.layout, is_everybody=True))
    assert job.core.leave(Role.PS, 1, "s", job.game.play.now).hands_over


def test_nobody_is_told_twice_who_has_gone(job):
    done = job.begin(3)
    job.answer(MovePrepared(done))
    tell = job.one(TellMoved)
    job.game.lose(1)
    job.answer(MoveTold(tell.layout, is_everybody=False))
    again = job.one(TellMoved)
    assert [seated.index for seated in again.whom] == [0, 2]
    job.answer(MoveTold(tell.layout, is_everybody=True))
    job.game.master_restarts()
    assert job.game.play.do(TellMoved) == []


def test_a_job_that_ends_before_it_has_moved_says_so(job):
    job.want(3)
    assert starts(job) == [2]
    job.game.play.work_off(job.leased)
    job.game.finish()
    said = [note.text for note in job.game.play.do(Note)]
    assert "the model stays on 2 ps replicas: the job is finished" in said


def test_what_cannot_move_stays_and_the_new_replicas_leave(job):
    done = job.begin(3)
    job.answer(MoveFailed(done, "rows of table 't' cannot move", is_refused=True))
    assert [stop.handle.index for stop in job.game.play.do(StopProcess)] == [2]
    job.game.play.now += 10.0
    job.core.tick(job.game.play.now)
    assert job.game.play.do(PrepareMove) == []
    assert job.route() == PsRoute(0, ("host:0", "host:1"), 0)


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"recovery_seconds": 0}, "--recovery_seconds=0"),
        ({"ps_recovery": "latest"}, "--ps_recovery=latest"),
    ],
)
def test_jobs_whose_model_does_not_move_are_told_the_flag(recovery_game, settings, flag):
    job = MovingGame(recovery_game(**settings))
    with pytest.raises(ElasticdlError, match=flag):
        job.want(3)


def marks(first_task=0, **watermarks):
    found = [[int(task[1:]), *values] for task, values in watermarks.items()]
    return ReplicaMarks(5, first_task, found, periods=[0, 0])


def test_replicas_agree_if_all_have_applied_the_same():
    one = marks(t1=(1, 3, 30), t2=(1, 0, 0))
    assert do_agree([one, marks(t1=(2, 3, 30))])
    assert not do_agree([one, marks(t1=(1, 2, 20))])
    assert not do_agree([one, marks()])
    assert do_agree([one, marks(first_task=2)])
    assert next_of_tasks([one, marks(t1=(1, 4, 40))]) == {1: 4, 2: 0}


def test_of_each_task_the_newest_lease_counts():
    found = merged(
        [marks(t1=(1, 3, 30)), replace(marks(t1=(2, 3, 30), t4=(7, 0, 0)), rests=[0, 2])]
    )
    assert found.watermarks == [[1, 2, 3, 30], [4, 7, 0, 0]]
    assert found.rests == [0, 2]


def test_of_versions_and_times_that_counts_which_all_know():
    one = replace(marks(), times=[[3, 100], [7, 200], [9, 300]], periods=[0, 5])
    found = merged([one, replace(marks(), times=[[2, 100], [8, 200]], periods=[0, 6])])
    assert found.times == [[2, 100], [7, 200]]
    assert found.periods == [0, 6]


@pytest.mark.parametrize("error", [RuntimeError("it takes too long"), ValueError("which move?")])
def test_what_a_replica_cannot_do_gives_the_move_up(error):
    asked = []

    class Replica:
        def move_step(self, replica, step):
            asked.append(step)
            if "describe" in step:
                raise error
            return "{}"

    seats = (PsProcess(0, "s", "there"),)
    mover = Mover(lambda address: Replica())
    with pytest.raises(UnavailableError, match=str(error).replace("?", r"\?")):
        mover.prepare(PrepareMove(3, 7, seats, seats), lambda parts: None, lambda *_: None)
    assert asked == ['{"describe": {}}', '{"abandon": {"number": 3}}']


def test_a_move_needs_the_room_of_what_a_replica_has_and_is_to_have():
    check_room([600, 600], 3, None)
    check_room([600, 600], 3, 1_000)
    with pytest.raises(MoveRefusedError, match=r"ps replica 1 holds 700 bytes .* about 433 more"):
        check_room([600, 700], 3, 1_000)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"ps_autoscale": 2, "num_ps": 2}, "expected more than --num_ps_pods=2"),
        ({"ps_autoscale": 4, "recovery_seconds": 0.0}, "--recovery_seconds=0"),
    ],
)
def test_what_cannot_move_is_refused_before_the_job_starts(master_kit, flags, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        master_kit.config(**{"num_ps": 1, **flags})
