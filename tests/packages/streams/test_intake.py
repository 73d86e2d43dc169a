"""A stream becomes tasks (packages/streams/intake.py), and their ledger."""

import json
import random

import numpy as np
import pytest

from elasticdl.job import Outcome, Shard
from elasticdl.master.journal import Journal
from elasticdl.master.ledger import Ledger, Settled
from elasticdl.master.missing_records import Missing
from elasticdl.master.missing_tasks import Applied
from elasticdl.master.tasks import JobTasks, TaskTable
from elasticdl.packages.streams.intake import Intake
from elasticdl.packages.streams.stream_table import MOST_PIECES, StreamTable

PER_TASK = 10


class Job:
    """Ledger and intake of a stream on one journal."""

    def __init__(self, *partitions, skips_gaps=False, keeps_order=False, ends_at_once=False):
        begin = partitions or (Shard("t-0", 0, 0), Shard("t-1", 0, 0))
        self.table = StreamTable(begin, keeps_order)
        self.tasks = JobTasks(self.table, TaskTable([], 10), TaskTable([], 10), 1)
        self.journal = Journal()
        flags = {"skips_gaps": skips_gaps, "ends_at_once": ends_at_once}
        self.intake = Intake(self.journal, self.table, PER_TASK, **flags)
        self.ledger = Ledger(
            self.tasks, self.journal, 0, True, max_retries=1, minibatch_size=5, rules=self
        )

    def may_begin(self, num_tasks):
        return num_tasks

    def may_lease(self, task_id):
        return self.intake.is_in_order(task_id, [task for task, _ in self.ledger.leases()])

    def arrived(self, now=0.0, **ends):
        found = [
            Shard(name.replace("_", "-"), *(end if isinstance(end, tuple) else (0, end)))
            for name, end in ends.items()
        ]
        problem = self.intake.arrived(found, now)
        self.cut(now)
        return problem

    def cut(self, now=0.0):
        self.intake.cut(self.ledger.num_todo, now, self.ledger.open_training())

    def lease(self, worker=0):
        lease = self.ledger.lease(worker, 0)
        return lease.task.id, lease.number

    def all_pieces(self):
        return [self.table.piece(number) for number in range(len(self.table))]

    def partition(self, name):
        found = self.intake.partitions(self.ledger.open_training())
        return next(each for each in found if each.name == name)

    def lag(self):
        found = self.intake.partitions(self.ledger.open_training())
        return {each.name: each.lag for each in found}


def again(job):
    """Return the job as another master takes it up: from its facts."""
    other = Job()
    for fact in json.loads(json.dumps(job.journal.take())):
        other.journal.replay(fact)
    return other


def restored(job, **flags):
    """Return the job as another master takes it up: from its snapshot."""
    other = Job(**flags)
    kept = json.loads(json.dumps([job.intake.snapshot(), job.ledger.snapshot()]))
    other.intake.restore(kept[0])
    other.ledger.restore(kept[1])
    return other


def test_nothing_arrived_is_nothing_to_do_and_no_end():
    job = Job()
    job.arrived(t_0=0, t_1=0)
    assert job.ledger.next_id() is None
    assert job.ledger.is_idle
    assert not job.ledger.is_trained


def test_what_arrives_is_cut_into_ranges_of_partitions():
    job = Job()
    job.arrived(t_0=20, t_1=7)
    assert job.all_pieces() == [Shard("t-0", 0, 10), Shard("t-0", 10, 20)]
    assert job.lease() == (0, 1)
    assert job.lease() == (1, 1)
    job.arrived(0.2, t_0=23, t_1=8)  # no task waits: short ones need not wait either
    assert job.all_pieces()[2:] == [Shard("t-0", 20, 23), Shard("t-1", 0, 8)]
    assert job.lag() == {"t-0": 23, "t-1": 8}
    job.ledger.report(0, 0, 1, Outcome.DONE)
    assert job.lag() == {"t-0": 13, "t-1": 8}


def test_a_short_task_waits_no_longer_than_a_second_behind_others():
    job = Job()
    job.arrived(0.0, t_0=10_000, t_1=3)
    assert {piece.name for piece in job.all_pieces()} == {"t-0"}
    job.arrived(0.9, t_0=10_000, t_1=4)
    assert {piece.name for piece in job.all_pieces()} == {"t-0"}
    job.arrived(1.0, t_0=10_000, t_1=5)
    assert job.all_pieces()[-1] == Shard("t-1", 0, 5)
    job.arrived(1.9, t_0=10_000, t_1=6)
    assert job.all_pieces()[-1] == Shard("t-1", 0, 5)


def test_a_backlog_is_cut_no_further_than_workers_need():
    job = Job()
    job.arrived(t_0=10**9, t_1=10**9)
    assert job.ledger.num_todo == 256
    assert job.lag() == {"t-0": 10**9, "t-1": 10**9}
    for _ in range(100):
        job.lease()
    job.arrived(t_0=10**9, t_1=10**9)
    assert job.ledger.num_todo == 256
    positions = job.table.next
    assert positions["t-0"] == positions["t-1"] == 356 // 2 * PER_TASK


def test_a_new_partition_is_read_from_its_first_message_on():
    job = Job()
    job.arrived(t_0=0, t_1=0, t_10=(4, 30))
    assert job.all_pieces() == [Shard("t-10", 4, 14), Shard("t-10", 14, 24)]
    assert list(job.lag()) == ["t-0", "t-1", "t-10"]


def test_what_was_deleted_unread_ends_the_job_or_is_counted():
    assert "t-0: positions [0, 7) were deleted" in Job().arrived(t_0=(7, 30))
    job = Job(skips_gaps=True)
    assert job.arrived(t_0=(7, 30)) == ""
    assert job.all_pieces() == [Shard("t-0", 7, 17), Shard("t-0", 17, 27)]
    assert restored(job).intake.skipped == again(job).intake.skipped == {"t-0": 7}


def test_what_was_deleted_after_it_was_cut_is_counted_by_partition():
    job = Job(skips_gaps=True)
    job.arrived(t_0=10, t_1=10)
    tasks = [job.lease() for _ in range(2)]
    for task, number in tasks:
        lacking = Missing(positions=4 + task, gone=3 + task)
        job.ledger.report(0, task, number, Outcome.DONE, "", 2, 6, lacking)
    for other in (job, restored(job), again(job)):
        assert other.ledger.missing.gone == {"t-0": 3, "t-1": 4}
    job.ledger.replay([0])
    assert job.ledger.missing.gone == {"t-0": 0, "t-1": 4}


def test_what_was_deleted_after_the_end_of_the_stream_is_not_counted():
    job = Job(skips_gaps=True)
    job.intake.drain()
    job.arrived(t_0=10, t_1=0)
    job.arrived(t_0=(30, 40), t_1=0)
    assert job.intake.skipped == {}
    assert job.intake.is_over


def test_a_broker_that_has_less_than_was_read_is_waited_for_and_then_told():
    job = Job()
    job.arrived(t_0=20)
    assert job.arrived(5.0, t_0=3) == ""
    assert "created again" in job.intake.trouble
    assert job.arrived(10.0, t_0=20) == ""
    assert job.intake.trouble == ""
    assert job.arrived(20.0, t_0=3) == ""
    assert "t-0: the broker has positions up to 3" in job.arrived(80.0, t_0=3)


@pytest.mark.parametrize("take_up", [again, restored])
def test_another_master_goes_on_where_the_last_one_was(take_up):
    job = Job()
    job.arrived(t_0=40, t_1=25)
    for _ in range(3):
        job.lease()
    job.ledger.report(0, 1, 1, Outcome.DONE, end_index=1, num_examples=4, missing=Missing(6))
    other = take_up(job)
    assert other.all_pieces() == job.all_pieces()
    assert other.table.next == job.table.next
    assert other.ledger.snapshot() == job.ledger.snapshot()
    other.ledger.worker_lost(0)
    assert [other.lease(1) for _ in range(3)] == [(0, 2), (2, 2), (3, 1)]
    other.arrived(t_0=60, t_1=25)
    assert other.all_pieces()[-1].end == 60


def test_records_are_counted_and_not_positions():
    job = Job()
    job.arrived(t_0=20)
    for task in (0, 1):
        job.lease()
        settled = job.ledger.report(
            0, task, 1, Outcome.DONE, end_index=2, num_examples=7, missing=Missing(3, 2)
        )
        assert settled is Settled.DONE
    assert job.ledger.training_records_done == 14
    assert job.ledger.missing.by_task == {0: Missing(3, 2), 1: Missing(3, 2)}
    job.ledger.replay([1])
    assert job.ledger.training_records_done == 7
    assert job.ledger.missing.by_task == {0: Missing(3, 2)}
    assert (job.ledger.missing.num_positions, job.ledger.missing.num_unreadable) == (3, 2)


def test_a_replica_that_is_back_is_given_what_it_lacks():
    job = Job()
    job.arrived(t_0=40)
    for _ in range(4):
        job.lease()
    job.ledger.report(0, 0, 1, Outcome.DONE, end_index=2, num_examples=10)
    job.ledger.report(0, 2, 1, Outcome.DONE, end_index=1, num_examples=4, missing=Missing(6))
    lacks = list(job.ledger.lacks(Applied.of({0: 1})))
    assert [(lack.task_id, lack.have, lack.minibatches) for lack in lacks] == [(0, 1, 1), (2, 0, 1)]
    job.ledger.replay([lack.task_id for lack in lacks])
    assert sorted(job.ledger.open_training()) == [0, 1, 2, 3]
    assert job.lease(1) == (0, 2)


def test_tasks_of_other_kinds_have_ids_beyond_those_of_the_stream():
    job = Job()
    assert job.tasks.export_id == MOST_PIECES
    job.ledger.queue(range(MOST_PIECES, MOST_PIECES + 1))
    assert job.lease() == (MOST_PIECES, 1)


@pytest.mark.parametrize("seed", range(20))
def test_every_position_is_trained_once_whatever_happens(seed):
    draw = random.Random(seed)
    job, ends, now = Job(), {"t_0": 0, "t_1": 0}, 0.0
    done, held = set(), {}
    for _ in range(300):
        now += draw.random()
        match draw.randrange(6):
            case 0:
                for name in ends:
                    ends[name] += draw.randrange(30)
                job.arrived(now, **ends)
            case 1 | 2 if job.ledger.next_id() is not None:
                worker = draw.randrange(3)
                if job.ledger.next_id(worker) is not None:
                    task, number = job.lease(worker)
                    held[task] = worker, number
            case 3 | 4 if held:
                task = draw.choice(sorted(held))
                worker, number = held.pop(task)
                assert job.ledger.report(worker, task, number, Outcome.DONE) is Settled.DONE
                assert task not in done
                done.add(task)
            case 5:
                worker = draw.randrange(3)
                for task in job.ledger.worker_lost(worker):
                    del held[task]
                job = restored(job)
    job.arrived(now + 2, **ends)
    while (task := job.ledger.next_id(9)) is not None or held:
        if task is None:
            task = min(held)
            worker, number = held.pop(task)
        else:
            worker, (task, number) = 9, job.lease(9)
        job.ledger.report(worker, task, number, Outcome.DONE)
        done.add(task)
        job.arrived(now := now + 2, **ends)
    pieces = [job.table.piece(number) for number in sorted(done)]
    for name, end in ends.items():
        mine = sorted((p.start, p.end) for p in pieces if p.name == name.replace("_", "-"))
        edges = np.array([(0, 0), *mine])
        assert (edges[1:, 0] == edges[:-1, 1]).all()
        assert edges[-1, 1] == end
    assert job.ledger.training_records_done == sum(ends.values())
    assert set(job.lag().values()) == {0}


@pytest.mark.parametrize("take_up", [again, restored])
def test_a_job_that_is_drained_ends_with_what_has_arrived(take_up):
    job = Job()
    job.arrived(t_0=14, t_1=0)
    job.intake.drain()
    assert not job.intake.is_over
    job.arrived(1.0, t_0=25, t_1=0, t_2=5)  # what comes with the next look is the end
    job = take_up(job)
    job.arrived(2.0, t_0=90, t_1=90, t_2=90)
    job.arrived(4.0, t_0=90, t_1=90, t_2=90)
    assert job.intake.is_over
    assert job.table.next == {"t-0": 25, "t-1": 0}
    assert job.lag() == {"t-0": 25, "t-1": 0}
    while job.ledger.has_fresh:
        job.ledger.report(0, *job.lease(), Outcome.DONE)
    job.ledger.stop_training()
    assert job.ledger.is_trained


def test_what_has_arrived_is_asked_when_a_broker_that_was_away_has_had_time_to_finish():
    job = Job()
    job.arrived(t_0=14)
    job.intake.drain()
    job.intake.away = "no broker answers"
    job.intake.answers_again(3.0)
    job.arrived(3.0, t_0=14)
    job.arrived(12.0, t_0=25)  # a transaction that it had acknowledged before it was killed
    job.arrived(13.0, t_0=25)
    job.arrived(14.0, t_0=90)
    job.arrived(16.0, t_0=90)
    assert job.intake.is_over
    assert job.table.next == {"t-0": 25, "t-1": 0}


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_each_partition_is_kept(seed):
    flags = {"keeps_order": True, "ends_at_once": True}
    draw, job, held, now = random.Random(seed), Job(**flags), {}, 0.0
    ends, trained = {"t_0": 95, "t_1": 41}, {"t-0": [], "t-1": []}
    job.arrived(**ends)
    while not (job.intake.is_over and not job.ledger.num_todo and not held):
        now += 0.25
        worker = draw.randrange(3)
        match draw.randrange(4):
            case 0:
                job.arrived(now, **{name: end + 50 for name, end in ends.items()})
            case 1 if job.ledger.next_id(worker) is not None:
                task, number = job.lease(worker)
                held[task] = worker, number
                names = [job.table.name_of(task) for task in held]
                assert len(set(names)) == len(names)
            case 2 if held:
                task = draw.choice(sorted(held))
                job.ledger.report(held[task][0], task, held.pop(task)[1], Outcome.DONE)
                trained[job.table.name_of(task)].append(job.table.piece(task))
                job.cut(now)
            case 3:
                for task in job.ledger.worker_lost(worker):
                    del held[task]
                if draw.random() < 0.2:
                    job = restored(job, **flags)
    for name, end in ends.items():
        edges = [0, *(piece.end for piece in trained[name.replace("_", "-")])]
        starts = [piece.start for piece in trained[name.replace("_", "-")]]
        assert starts == edges[:-1]
        assert edges[-1] == end


def test_what_is_replayed_of_a_partition_is_not_leased_beside_another_task_of_it():
    job = Job(keeps_order=True)
    job.arrived(t_0=30)
    for _ in range(2):
        job.ledger.report(0, *job.lease(), Outcome.DONE)
        job.cut()
    job.ledger.replay([0, 1])
    assert job.lease(0) == (0, 2)
    assert job.ledger.next_id(1) is None
    job.ledger.report(0, 0, 2, Outcome.DONE)
    assert job.lease(1) == (1, 2)
    assert job.ledger.next_id(0) is None
    job.ledger.report(1, 1, 2, Outcome.DONE)
    assert job.lease(0) == (2, 1)


def test_tasks_of_a_partition_that_come_back_are_leased_in_their_order():
    job = Job(keeps_order=True)
    job.arrived(t_0=40)
    for _ in range(4):
        job.ledger.report(0, *job.lease(), Outcome.DONE)
        job.cut()
    job.ledger.replay([2, 3])
    job.ledger.replay([0, 1])
    job.ledger.report(0, *job.lease(), Outcome.FAILED, "once")
    order = []
    while job.ledger.next_id() is not None:
        task, number = job.lease()
        assert job.ledger.next_id(1) is None
        if task == 1 and number == 2:
            job.ledger.worker_lost(0, are_suspects=True)
            continue
        job.ledger.report(0, task, number, Outcome.DONE)
        order.append(task)
    assert order == [0, 1, 2, 3]


def test_a_partition_is_as_late_as_its_newest_trained_message_while_others_wait():
    job = Job()
    job.arrived(t_0=20)
    assert job.partition("t-0").delay_seconds(now=1000.0) is None
    job.intake.trained("t-0", 990.0)
    job.intake.trained("t-0", 980.0)  # of an earlier range
    job.intake.trained("t-0", 0.0)  # its messages have no times
    assert job.partition("t-0").delay_seconds(now=1000.0) == 10.0
    for task in (0, 1):
        assert job.lease() == (task, 1)
        job.ledger.report(0, task, 1, Outcome.DONE, end_index=2, num_examples=10)
    assert job.partition("t-0").delay_seconds(now=2000.0) == 0.0


def test_pieces_have_as_many_positions_as_have_the_records_of_a_task():
    journal, table = Journal(), StreamTable([Shard("t-0", 0, 0)])
    intake = Intake(journal, table, 100, guessed_records=50.0)

    def size_of_piece():
        at = table.next["t-0"]
        intake.arrived([Shard("t-0", 0, at + 100)], 0.0)
        before = len(table)
        intake.cut(0, 0.0, ())
        return table.piece(before).num_records

    assert size_of_piece() == 2
    for _ in range(20):
        intake.found(10, 100)
    assert size_of_piece() == 10
    for _ in range(20):
        intake.found(10, 5)  # half of the positions are holes
    assert size_of_piece() == 100
    intake.found(1, 100_000)
    assert size_of_piece() == 1


@pytest.mark.parametrize("keeps_order", [False, True])
def test_messages_of_many_records_are_counted_as_records(keeps_order):
    job = Job(keeps_order=keeps_order)
    job.arrived(t_0=4, t_1=0)
    task, number = job.lease()
    lacking = Missing(positions=4 - 90)
    done = {"end_index": 18, "num_examples": 90, "missing": lacking}
    assert job.ledger.report(0, task, number, Outcome.DONE, **done) is Settled.DONE
    for other in (job, restored(job, keeps_order=keeps_order)):
        assert other.ledger.training_records_done == 90
        (lack,) = other.ledger.lacks({task: 3})
        assert (lack.have, lack.minibatches, lack.records) == (3, 15, 75)
        other.ledger.replay([task])
        assert other.ledger.training_records_done == 0


def test_a_partition_is_trained_up_to_its_first_task_that_is_not_done():
    job = Job()
    job.arrived(t_0=30, t_1=7)
    job.arrived(9.0, t_0=30, t_1=7)
    up_to = lambda: job.intake.trained_up_to(job.ledger.open_training())  # noqa: E731
    assert up_to() == {"t-0": 0, "t-1": 0}
    done = {"end_index": 2, "num_examples": 10}
    leases = [job.lease() for _ in range(4)]
    job.ledger.report(0, *leases[1], Outcome.DONE, **done)
    job.ledger.report(0, *leases[3], Outcome.FAILED, "no record", is_last_try=True)
    assert up_to() == {"t-0": 0, "t-1": 7}  # what is set aside holds nobody up
    job.ledger.report(0, *leases[0], Outcome.DONE, **done)
    assert up_to() == {"t-0": 20, "t-1": 7}
    job.ledger.replay([0])
    assert up_to() == {"t-0": 0, "t-1": 7}


def test_what_was_set_aside_long_ago_takes_no_room_and_is_not_tried_again():
    job = Job()
    count = 300
    job.arrived(t_0=10 * count, t_1=0)
    for _ in range(count):
        if not job.ledger.num_todo:
            job.cut()
        task, number = job.lease()
        job.ledger.report(0, task, number, Outcome.FAILED, f"why {task}", is_last_try=True)
    words = job.ledger.aside.words()
    assert words.startswith("300 tasks failed and were set aside: why 0; why 1; why 2; and 297 mo")
    job.table.forget(250)
    job.ledger.forget_tasks(250)
    for other in (job, restored(job)):
        assert other.ledger.aside.words() == words
        assert len(other.ledger.aside.quarantined) == 100 + 50
        other.ledger.reopened(lambda task: False)
        assert [other.ledger.lease(0, 0).task.id for _ in range(50)] == list(range(250, 300))
        assert other.ledger.next_id() is None
        assert other.ledger.aside.words().startswith("250 tasks failed")
