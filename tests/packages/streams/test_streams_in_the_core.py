"""What the core does otherwise where a job reads a stream."""

from types import SimpleNamespace

import pytest

from elasticdl.job import Role, Shard
from elasticdl.job.status import PartitionStatus
from elasticdl.master.features.sources import RecordSource
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.parameters.answers import Watermarks
from elasticdl.master.phases import Phase
from elasticdl.master.status import picture
from elasticdl.master.tasks import draws_order, growth_of
from tests.packages.all_reduce.test_worlds import BeginWith, Worlds, _done


def test_workers_that_can_restore_nothing_fail_a_job_that_has_forgotten_tasks(master_kit):
    worlds = Worlds(master_kit, num_workers=2, training_data="kafka://b/t", validation_data="")
    worlds.begin()
    worlds.core.features.of(RecordSource).arrived([Shard("a", 0, 300)], worlds.play.now)
    for _ in range(2):
        worlds.core.report(0, "s0", _done(worlds.lease(0)), worlds.play.now)
    worlds.core.journal.record("retire", 2, [60, 60, 0, 0, 60], "")
    worlds.lose(0)
    worlds.lose(1)
    worlds.register(2, 3)
    worlds.attend(2)
    worlds.attend(3)
    assert worlds.attend(2) == BeginWith(None)
    worlds.attend(2, version=0)
    worlds.core.answered(Watermarks(2, "s2", Applied.of({}), Role.WORKER), worlds.play.now)
    assert worlds.core.phase is Phase.FAILED
    assert "none of the job's checkpoints can be restored" in worlds.core.message


@pytest.mark.parametrize(
    ("place", "shuffle_tasks", "deterministic", "is_drawn"),
    [
        ("files", True, False, True),
        ("files", False, False, False),
        ("kafka://b/t?end=latest", True, False, False),
        ("kafka://b/t?end=latest", True, True, True),
    ],
)
def test_the_order_of_a_topic_is_not_drawn(place, shuffle_tasks, deterministic, is_drawn):
    training = SimpleNamespace(shuffle_tasks=shuffle_tasks, deterministic=deterministic)
    config = SimpleNamespace(training=training, data=SimpleNamespace(training_data=place))
    assert draws_order(config) is is_drawn


def test_partitions_of_a_topic_with_an_end_are_shown_once_messages_were_deleted_unread(master_kit):
    pieces = {"training": (("t-1", 30), ("t-0", 30), ("t-0", 60)), "validation": ()}
    play = master_kit.play(
        master_kit.config(training_data="kafka://b/t?end=latest", validation_data=""), **pieces
    )
    play.core.begin(0.0)
    play.register(0)
    assert picture(play.core, 0.0).partitions == ()
    play.report(play.lease(), end_index=2, num_examples=18, num_missing=12, num_gone=10)
    assert picture(play.core, 0.0).partitions == (
        PartitionStatus("t-0", 60, 60, lag=90),
        PartitionStatus("t-1", 30, 30, lag=0, skipped=10),
    )


def test_tasks_of_a_stream_are_as_large_as_the_settings_say(master_kit):
    sizes = {"num_ps": 1, "minibatch_size": 10, "num_minibatches_per_task": 20}
    config = master_kit.config(**sizes, training_data="kafka://broker/topic")
    assert growth_of(config, 200 * 10**9) == 1
