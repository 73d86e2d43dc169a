import re

import pytest

from elasticdl.job import Moment, MomentKind, Shard, TaskKind
from elasticdl.master.tasks import JobTasks, TaskTable, growth_of, in_turns
from elasticdl.settings.training import TrainingSection


def make_tasks(training=(), validation=(), prediction=(), per_task=30, num_epochs=2):
    tables = (TaskTable(shards, per_task) for shards in (training, validation, prediction))
    return JobTasks(*tables, num_epochs)


@pytest.mark.parametrize(
    ("growth", "tasks", "settings"),
    [
        (1, 39_999, {}),
        (2, 40_000, {}),
        (21, 427_000, {}),
        (50, 10**9, {}),
        (1, 10**9, {"num_minibatches_per_task": 21}),
        (1, 10**9, {"num_ps": 0}),
        (1, 10**9, {"shuffle": "records", "shuffle_tasks": True}),
        (1, 10**9, {"finish_rate": 0.9}),
        (1, 10**9, {"command": "predict"}),
    ],
)
def test_tasks_are_larger_where_an_epoch_has_very_many_and_nobody_waits_for_one(
    master_kit, growth, tasks, settings
):
    sizes = {"num_ps": 1, "minibatch_size": 10, "num_minibatches_per_task": 20}
    assert growth_of(master_kit.config(**sizes | settings), 200 * tasks) == growth


def test_the_help_says_from_how_many_tasks_they_are_larger(master_kit):
    text = TrainingSection.model_fields["num_minibatches_per_task"].description
    least = int(re.search(r"at least ([\d,]+) of them", text)[1].replace(",", ""))
    config = master_kit.config(num_ps=1, minibatch_size=10, num_minibatches_per_task=20)
    assert [growth_of(config, 200 * num) for num in (least - 1, least)] == [1, 2]


def test_pieces_cover_each_record_once():
    shards = [Shard("a", 0, 95), Shard("empty", 7, 7), Shard("b", 5, 35), Shard("c", 0, 1)]
    table = TaskTable(shards, 30)
    pieces = [table.piece(number) for number in range(len(table))]
    assert pieces == [
        Shard("a", 0, 30),
        Shard("a", 30, 60),
        Shard("a", 60, 90),
        Shard("a", 90, 95),
        Shard("b", 5, 35),
        Shard("c", 0, 1),
    ]
    assert table.num_records == 126


def test_empty_shards_at_both_ends_have_no_pieces():
    table = TaskTable([Shard("x", 0, 0), Shard("a", 0, 10), Shard("y", 0, 0)], 30)
    assert [table.piece(n) for n in range(len(table))] == [Shard("a", 0, 10)]


def test_table_without_shards_is_empty():
    assert len(TaskTable([], 30)) == 0


def test_ids_are_unique_within_the_job():
    tasks = make_tasks([Shard("a", 0, 70)], [Shard("v", 0, 40)], [Shard("p", 0, 50)])
    ids = [
        *tasks.epoch_ids(0),
        *tasks.epoch_ids(1),
        tasks.export_id,
        *tasks.prediction_ids,
        tasks.callbacks_id(Moment(MomentKind.TRAIN_BEGIN)),
        tasks.callbacks_id(Moment(MomentKind.EPOCH_END, 0)),
        tasks.callbacks_id(Moment(MomentKind.EPOCH_END, 1)),
        tasks.callbacks_id(Moment(MomentKind.TRAIN_END)),
        *tasks.evaluation_ids(0),
        tasks.metrics_id(0),
        tasks.callbacks_id(Moment(MomentKind.EVALUATION, 0)),
        *tasks.evaluation_ids(1),
        tasks.metrics_id(1),
    ]
    assert ids == list(range(len(ids)))
    assert [tasks.task(id).id for id in ids] == ids


def test_task_is_told_by_its_id():
    tasks = make_tasks([Shard("a", 0, 70)], [Shard("v", 0, 40)], [Shard("p", 0, 50)])
    training = tasks.task(tasks.epoch_ids(1)[2])
    assert (training.kind, training.epoch) == (TaskKind.TRAINING, 1)
    assert training.shard == Shard("a", 60, 70)
    evaluation = tasks.task(tasks.evaluation_ids(3)[1])
    assert (evaluation.kind, evaluation.evaluation_id) == (TaskKind.EVALUATION, 3)
    assert evaluation.shard == Shard("v", 30, 40)
    metrics = tasks.task(tasks.metrics_id(3))
    assert (metrics.kind, metrics.evaluation_id) == (TaskKind.METRICS, 3)
    assert metrics.shard.num_records == 0
    assert tasks.task(tasks.export_id).kind is TaskKind.EXPORT
    assert tasks.task(tasks.prediction_ids[0]).shard == Shard("p", 0, 30)


def test_a_partial_evaluation_is_of_chosen_minibatches_of_all_the_data(master_kit):
    def chosen(seed, count=5):
        config = master_kit.config(evaluation_minibatches=count, seed=seed)
        tasks = master_kit.core(config, validation=(("v", 95), ("w", 400))).tasks
        return [tasks.task(i).shard for i in tasks.evaluation_ids(0)], tasks.validation.num_records

    shards, num_records = chosen(seed=3)
    assert len(shards) == 5
    assert all(shard.start % 10 == 0 and shard.num_records <= 10 for shard in shards)
    assert num_records == sum(shard.num_records for shard in shards)
    assert len({shard.start // 100 for shard in shards}) > 1
    assert chosen(seed=3)[0] == shards
    assert chosen(seed=4)[0] != shards
    assert sum(shard.num_records for shard in chosen(seed=3, count=1000)[0]) == 495


def test_tasks_of_a_topic_come_as_its_messages_came_partitions_in_turns():
    shards = [Shard("t-0", 5, 30), Shard("t-1", 0, 0), Shard("t-2", 0, 12)]
    pieces = [piece for piece in in_turns(shards, 10) if piece.num_records]
    assert pieces == [
        Shard("t-0", 5, 15),
        Shard("t-2", 0, 10),
        Shard("t-0", 15, 25),
        Shard("t-2", 10, 12),
        Shard("t-0", 25, 30),
    ]
    many = list(in_turns([Shard("t-0", 0, 10**9), Shard("t-1", 0, 10**9)], 10))
    assert len(many) <= 2 * 65_536
    assert sum(piece.num_records for piece in many) == 2 * 10**9
    assert [piece.name for piece in many[:4]] == ["t-0", "t-1"] * 2
    assert all(piece.num_records % 10 == 0 for piece in many)
