"""When a job evaluates, and what an evaluation that fails ends."""

from pathlib import Path

import numpy as np
import pytest

from elasticdl.job import Finished, Progress, Role, TaskKind, Wait
from elasticdl.job.status import BestEvaluation
from elasticdl.master.actions import Note, WriteCheckpoint
from elasticdl.master.parameters.answers import CheckpointWritten
from elasticdl.master.status import picture
from elasticdl.settings.best import Best
from tests.unit.master.started_job import exits, fail, kinds, start


def test_evaluation_happens_while_training(master_kit):
    play = start(master_kit, evaluation_steps=4, num_epochs=2, shards={"training": (("a", 90),)})
    tasks = play.run()
    t, e, m = TaskKind.TRAINING, TaskKind.EVALUATION, TaskKind.METRICS
    # Versions after each training task: 3, 6, 9, 12, 15, 18; due at 4, 8, 12 and 16.
    assert kinds(tasks) == [t, t, e, m, t, e, m, t, e, m, t, t, e, m]
    assert [r.version for r in play.core.evaluations.results] == [6, 9, 12, 18]


def test_without_a_flag_each_epoch_is_evaluated_before_the_next_one_begins(master_kit):
    play = start(master_kit, num_epochs=3, shards={"training": (("a", 90),)}, num_workers=2)
    held = [play.lease(0), play.lease(1), play.lease(0)]
    assert [lease.task.epoch for lease in held] == [0, 0, 0]
    assert isinstance(play.lease(1), Wait)  # nobody begins the next epoch yet
    for lease, worker in zip(held, (0, 1, 0), strict=True):
        play.work_off(lease, worker)
    t, e, m = TaskKind.TRAINING, TaskKind.EVALUATION, TaskKind.METRICS
    assert kinds(play.run()) == [e, m, t, t, t, e, m, t, t, t, e, m]
    assert [r.version for r in play.core.evaluations.results] == [9, 18, 27]


def test_the_checkpoint_of_the_best_evaluation_is_kept_beyond_the_newest(master_kit):
    play = start(
        master_kit,
        num_epochs=4,
        checkpoint_dir=Path("c"),
        keep_checkpoint_max=1,
        keep_best="val_auc",
        shards={"training": (("a", 90),)},
    )
    aucs, written = iter([0.6, 0.8, 0.7, 0.8]), []
    while not isinstance(lease := play.lease(), Finished):
        if isinstance(lease, Wait) or lease is None:
            wanted = play.do(WriteCheckpoint)
            if not wanted:
                break
            (action,) = wanted
            assert not play.core.ledger.num_doing
            written.append(action.version)
            play.core.answered(CheckpointWritten(action.version), play.now)
        elif lease.task.kind is TaskKind.METRICS:
            play.report(lease, metrics={"auc": next(aucs)})
        else:
            play.work_off(lease)
    play.core.answered(CheckpointWritten(36), play.now)  # the last one
    assert written[:2] == [9, 18]
    assert picture(play.core, 0.0).checkpoints == (18, 36)
    assert picture(play.core, 0.0).best == BestEvaluation("auc", "max", 0.8, 18, 2, 18)
    written_notes = [n.text for n in play.do(Note) if "is written" in n.text]
    assert "checkpoint of version 18 is written, that of the best evaluation" in written_notes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("val_auc", Best("auc", "max")),
        ("loss", Best("loss", "min")),
        ("out/root_mean_squared_error", Best("out/root_mean_squared_error", "min")),
        ("profit:max", Best("profit", "max")),
        ("", None),
    ],
)
def test_a_metric_says_whether_more_or_less_is_better_or_the_flag_does(text, found):
    assert Best.of(text) == found
    with pytest.raises(ValueError, match="cannot be told; say --keep_best=profit:max"):
        Best.of("profit")


def test_an_evaluation_that_is_given_up_holds_no_epoch_back(master_kit):
    play = start(master_kit, num_epochs=2, max_task_retries=0, shards={"training": (("a", 30),)})
    play.work_off(play.lease())
    assert fail(play, 1, "metric raised").kind is TaskKind.EVALUATION
    assert kinds(play.run()) == [TaskKind.TRAINING]


def test_evaluation_is_due_by_what_heartbeats_say(master_kit):
    play = start(master_kit, evaluation_steps=4)
    play.lease()
    play.core.heartbeat(Role.WORKER, 0, "s", Progress(model_version=4), 0.0)
    assert play.lease().task.kind is TaskKind.EVALUATION


def test_lost_workers_evaluation_is_counted_once(master_kit):
    play = start(master_kit, "evaluate", shards={"validation": (("v", 60),)}, num_workers=2)
    lost = play.lease(0)
    exits(play, 0)
    assert not play.report(lost, 0, metric_states={"count": [np.array([30.0, 1.0])]})
    play.run(1)
    assert picture(play.core, 0.0).metrics == {"count": 60.0}


def test_metric_states_of_another_shape_are_a_failure(master_kit):
    play = start(master_kit, "evaluate", shards={"validation": (("v", 90),)}, max_task_retries=0)
    play.work_off(play.lease())
    play.report(play.lease(), metric_states={"count": [np.zeros(3)]})
    play.run()
    status = picture(play.core, 0.0)
    assert status.status == "failed"
    assert "eval_metrics_fn: expected metric states {'count': [(2,)]}" in status.message


def test_failing_evaluation_is_given_up_and_training_goes_on(master_kit):
    play = start(
        master_kit,
        evaluation_steps=1,
        max_task_retries=0,
        shards={"validation": (("v", 90),)},
        output=Path("out"),
    )
    play.work_off(play.lease())
    assert fail(play, 1, "metric raised").kind is TaskKind.EVALUATION
    assert kinds(play.run()) == [TaskKind.TRAINING]
    play.audit()
    assert "metric raised" in picture(play.core, 0.0).message
