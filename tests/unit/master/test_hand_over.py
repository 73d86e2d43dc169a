"""A ps replica is asked to end: what it hands over is all that its successor needs."""

import pytest

from elasticdl.errors import ElasticdlError
from elasticdl.job import Outcome, Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master.actions import DeleteHandOvers, StartProcess, WriteCheckpoint
from elasticdl.master.parameters.answers import CheckpointWritten
from elasticdl.master.parameters.hand_overs import HandOver
from elasticdl.master.parameters.schedule import WholeCheckpoint
from elasticdl.master.status import picture

VERSION = 7


@pytest.fixture
def game(recovery_game):
    return recovery_game(recovery_seconds=60.0)


def leaves(game, session="s", index=1):
    return game.core.leave(Role.PS, index, session, game.play.now).is_awaited


def hands_over(game, session="s", index=1):
    """The replica says that it is asked to end, that it has written all, and ends."""
    assert leaves(game, session, index)
    game.core.parameters.handed_over(index, session, VERSION, game.play.now)
    ends(game, index)


def ends(game, index=1):
    handle = ProcessHandle(Role.PS, index, "")
    game.core.process_exited(Exited(handle, ExitReason.PREEMPTED, 143), game.play.now)


def recovery(game):
    return picture(game.core, game.play.now).recoveries[-1]


def checkpoint(game):
    """Have a recovery checkpoint asked for and written; return its version."""
    game.play.now += 100.0
    game.core.tick(game.play.now)
    (write,) = game.play.do(WriteCheckpoint)
    game.core.answered(CheckpointWritten(write.version), game.play.now)
    return write.version


def done_and_leased(game):
    """One task is done, one is leased; return its lease and what a replica has of each."""
    first = game.play.lease()
    game.play.work_off(first)
    return game.play.lease(), [3, 1]


def test_successor_begins_with_what_was_handed_over_and_nothing_is_trained_again(game):
    lease, has = done_and_leased(game)

    hands_over(game)
    assert StartProcess(Role.PS, 1) in game.play.do(StartProcess)
    assert game.core.parameters.restore_point(1) == HandOver(1, "s", VERSION, game.play.now)
    game.back(minibatches=has)

    assert recovery(game).is_handed_over
    assert (recovery(game).tasks, recovery(game).version) == (0, VERSION)
    # A lease of before ends as done: nothing that its worker pushed was lost.
    assert game.play.report(lease, num_records=30, num_minibatches=3, end_index=3)
    assert game.core.ledger.num_done == 2


def test_in_synchronous_training_leases_of_before_a_hand_over_do_not_end_as_done(recovery_game):
    """A gradient that was kept for its round is in no file: its worker believes it applied."""
    game = recovery_game(use_async=False, grads_to_wait=2)
    lease, has = done_and_leased(game)

    hands_over(game)
    assert game.core.parameters.restore_point(1) == HandOver(1, "s", VERSION, game.play.now)
    game.back(minibatches=has)

    assert not recovery(game).is_handed_over
    assert recovery(game).tasks == 0
    game.play.report(lease, num_records=30, num_minibatches=3, end_index=3)
    assert game.core.ledger.num_done == 1


def test_lease_of_before_does_not_end_as_done_where_nothing_was_handed_over(game):
    lease, has = done_and_leased(game)

    assert leaves(game)
    ends(game)
    assert game.core.parameters.restore_point(1) is None
    game.back(minibatches=has)

    assert not recovery(game).is_handed_over
    game.play.report(lease, num_records=30, num_minibatches=3, end_index=3)
    assert game.core.ledger.num_done == 1


def test_other_replicas_begin_with_a_checkpoint(game):
    game.play.work_off(game.play.lease())
    version = checkpoint(game)
    hands_over(game, index=1)
    game.lose(0)

    assert game.core.parameters.restore_point(0) == WholeCheckpoint(version, is_private=True)


def test_unsound_hand_over_falls_back_to_the_last_checkpoint(game):
    game.play.work_off(game.play.lease())
    version = checkpoint(game)
    hands_over(game)

    assert game.core.parameters.restore_point(1) == HandOver(1, "s", VERSION, game.play.now)
    again = game.core.parameters.restore_point(1, 1, "a file is torn")
    assert again == WholeCheckpoint(version, is_private=True)
    game.core.register_ps(1, "b", 300, "host:11", game.play.now)
    game.back(minibatches=[0], session="b")

    assert not recovery(game).is_handed_over
    assert recovery(game).tasks == 1


def test_what_a_second_process_of_a_replica_asks_changes_nothing(game):
    """A master that was killed had started it, and the next one did not know."""
    _, has = done_and_leased(game)
    hands_over(game)
    assert game.core.parameters.restore_point(1).session == "s"
    session = game.comes_up()
    with pytest.raises(ElasticdlError, match="ps replica 1 is already process"):
        game.core.parameters.restore_point(1, 1, "its files are gone, as they were restored")
    game.back(minibatches=has, session=session)

    assert recovery(game).is_handed_over


def test_master_that_comes_back_knows_what_was_handed_over(game):
    lease, has = done_and_leased(game)
    hands_over(game)

    game.master_restarts()
    assert game.core.parameters.restore_point(1).session == "s"
    session = game.comes_up()
    game.master_restarts()
    game.back(minibatches=has, session=session)

    assert recovery(game).is_handed_over
    assert game.play.report(lease, outcome=Outcome.RETURNED)


def test_successor_that_is_killed_later_has_lost_what_it_had_applied_itself(game):
    lease, has = done_and_leased(game)
    hands_over(game)
    game.back(minibatches=has)
    game.play.report(lease, num_records=30, num_minibatches=3, end_index=3)

    game.lose()
    assert game.core.parameters.restore_point(1).session == "s"  # no checkpoint is newer
    game.back(minibatches=has)

    assert not recovery(game).is_handed_over
    assert recovery(game).tasks == 1


def test_successor_that_dies_before_it_serves_leaves_the_hand_over_as_good_as_it_was(game):
    _, has = done_and_leased(game)
    hands_over(game)
    game.comes_up()
    game.lose()
    game.back(minibatches=has)

    assert recovery(game).is_handed_over


def test_newer_checkpoint_replaces_what_was_handed_over(game):
    game.play.work_off(game.play.lease())
    hands_over(game)
    game.back(minibatches=[3])
    game.play.work_off(game.play.lease())

    version = checkpoint(game)
    game.lose()

    assert game.core.parameters.restore_point(1) == WholeCheckpoint(version, is_private=True)
    assert game.play.do(DeleteHandOvers) == [DeleteHandOvers()]
    assert game.core.parameters.kept_hand_overs(Role.PS) == set()


def test_what_a_replica_writes_that_was_asked_to_end_after_a_checkpoint_is_not_deleted(game):
    """Deletions wait behind other work on the disk, and replicas are asked to end meanwhile."""
    game.play.work_off(game.play.lease())
    hands_over(game)
    session = game.comes_up()
    game.back(minibatches=[3], session=session)
    game.play.work_off(game.play.lease())
    checkpoint(game)
    assert game.play.do(DeleteHandOvers)

    assert leaves(game, session)

    assert game.core.parameters.kept_hand_overs(Role.PS) == {(1, session)}


def test_checkpoint_that_began_before_is_older_than_what_was_handed_over(game):
    game.play.work_off(game.play.lease())
    game.play.now += 100.0
    game.core.tick(game.play.now)
    (write,) = game.play.do(WriteCheckpoint)
    hands_over(game)
    game.core.answered(CheckpointWritten(write.version), game.play.now)

    assert game.core.parameters.restore_point(1).session == "s"
    assert game.play.do(DeleteHandOvers) == []


def test_nobody_hands_over_to_a_job_that_keeps_no_recovery_checkpoints(recovery_game):
    game = recovery_game(recovery_seconds=0.0)
    assert not leaves(game)


def test_process_that_was_given_up_hands_nothing_over(game):
    game.lose()
    game.core.parameters.handed_over(1, "s", VERSION, game.play.now)
    assert game.core.parameters.restore_point(1) is None


def test_no_lease_and_no_checkpoint_while_a_replica_leaves(game):
    assert game.core.parameters.is_complete
    assert leaves(game)
    assert not game.core.parameters.is_complete
