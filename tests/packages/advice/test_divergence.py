"""A loss that is far above the first one is told when it begins, and at the end."""

import pytest

from elasticdl.job import FIRST_LOSS, Lease, TaskKind
from elasticdl.master.actions import Note
from elasticdl.master.status import picture


@pytest.fixture
def job(master_kit):
    def job(losses, first=2.0):
        play = master_kit.play(master_kit.config(num_epochs=2), validation=())
        play.core.begin(play.now)
        play.register(0)
        left = list(losses)
        while left and isinstance(lease := play.lease(), Lease):
            if lease.task.kind is not TaskKind.TRAINING:
                play.report(lease)
                continue
            size, loss = lease.task.shard.num_records, left.pop(0)
            metrics = {FIRST_LOSS: first if len(left) == len(losses) - 1 else loss}
            play.report(lease, num_records=size, loss_sum=size * loss, metrics=metrics)
        notes = [note for note in play.do(Note) if note.kind.event == "anomaly"]
        return notes, [line for line in picture(play.core, play.now).data_check]

    return job


def test_a_run_that_diverges_is_told_once_and_at_the_end(job):
    (note,), (line,) = job([1.5, 3e16, 4e16])
    assert note.kind.what == "diverging loss"
    assert note.is_warning
    assert "the loss began with 2 and is 3e+16 now" in note.text
    assert line.startswith("model: training diverges: the loss began with 2 and is 4e+16 now")


def test_it_is_seen_within_the_first_task(job):
    assert "is 3e+16 now" in job([3e16])[1][0]


@pytest.mark.parametrize("losses", [[1.5, 1.0, 0.5], [150.0, 3.0, 1.0], [9e9, 0.1]])
def test_a_loss_that_comes_down_again_is_nothing_to_tell_at_the_end(job, losses):
    assert job(losses)[1] == []


def test_a_first_loss_of_nearly_nothing_is_no_measure(job):
    assert job([0.05, 0.09], first=1e-9) == ([], [])
