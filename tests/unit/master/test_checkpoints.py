"""When a job writes checkpoints, and what one that fails ends."""

from pathlib import Path

from elasticdl.master.actions import DeleteCheckpoints, WriteCheckpoint
from elasticdl.master.core import Phase
from elasticdl.master.parameters.answers import CheckpointFailed, CheckpointWritten
from elasticdl.master.status import picture
from tests.unit.master.started_job import start


def test_checkpoints_are_written_while_training_and_old_ones_deleted(master_kit):
    play = start(
        master_kit,
        checkpoint_dir=Path("c"),
        checkpoint_steps=4,
        keep_checkpoint_max=2,
        shards={"training": (("a", 180),), "validation": ()},
    )
    kept = []
    for version in (6, 9, 12, 18):  # due at 4, 8 and 12; the last one at the end
        play.run(until=lambda task, version=version: play.version >= version)
        assert play.do(WriteCheckpoint) == [WriteCheckpoint(version)]
        play.core.answered(CheckpointWritten(version), 0.0)
        kept += play.do(DeleteCheckpoints)
    assert [action.kept for action in kept] == [(6,), (6, 9), (9, 12), (12, 18)]


def test_one_checkpoint_is_written_at_a_time(master_kit):
    play = start(
        master_kit,
        checkpoint_dir=Path("c"),
        checkpoint_steps=1,
        shards={"validation": ()},
    )
    play.run()
    assert play.do(WriteCheckpoint) == [WriteCheckpoint(3)]
    assert play.core.phase is Phase.CHECKPOINTING
    play.core.answered(CheckpointWritten(3), 0.0)
    assert play.do(WriteCheckpoint) == [WriteCheckpoint(6)]  # the last one is still to come
    play.core.answered(CheckpointWritten(6), 0.0)
    assert play.core.phase is Phase.AUDITING


def test_failed_checkpoint_while_training_is_told_and_training_goes_on(master_kit):
    play = start(master_kit, checkpoint_dir=Path("c"), checkpoint_steps=3)
    play.work_off(play.lease())
    play.do(WriteCheckpoint)
    play.core.answered(CheckpointFailed(3, "disk full"), 0.0)
    status = picture(play.core, 0.0)
    assert (status.status, status.message) == ("running", "checkpoint of version 3: disk full")
    play.run()
    play.core.answered(CheckpointWritten(6), 0.0)
    play.audit()
    assert (play.core.phase, play.core.message) == (Phase.FINISHED, "")


def test_checkpoint_that_ends_after_the_job_changes_nothing(master_kit):
    play = start(master_kit, checkpoint_dir=Path("c"), checkpoint_steps=3)
    play.work_off(play.lease())
    play.core.stop("Ctrl-C", 1.0)
    play.core.answered(CheckpointFailed(3, "replica 0 is gone"), 2.0)
    status = picture(play.core, 3.0)
    assert (status.status, status.message) == ("failed", "stopped: Ctrl-C")


def test_job_without_its_last_checkpoint_fails(master_kit):
    play = start(master_kit, checkpoint_dir=Path("c"))
    play.run()
    for now in (0.0, 200.0, 400.0, 600.0):
        play.core.tick(now)
        play.core.answered(CheckpointFailed(6, "disk full"), now)
    play.audit()
    assert play.core.phase is Phase.FAILED
    assert play.core.message == "checkpoint of version 6: disk full"
