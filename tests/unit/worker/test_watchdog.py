"""What takes too long, with time as a number."""

from elasticdl.job import Lease, Position, Shard, Task, TaskKind
from elasticdl.worker.spans import Place, Work
from elasticdl.worker.watchdog import (
    COMPILE_SECONDS,
    LEAST_LIMIT_SECONDS,
    Overdue,
    SlowWork,
    Watchdog,
    position,
)

LEASE = Lease(Task(7, TaskKind.TRAINING, Shard("a.recordio", 100, 200), epoch=1), 2)
PLACE = Place(LEASE, 3, 10)


def work(since=0.0, is_first=False, longest=0.0):
    return Work("feed", PLACE, since, is_first, longest)


def looked(watchdog, found, until, busy=False, step=1.0):
    """Look every second; return the time and the answer of the first look that found something."""
    now = 0.0
    while now < until:
        now += step
        answer = watchdog.look(now, now if busy else 0.0, [found])
        if isinstance(answer, Overdue):
            return now
    return None


def test_call_that_does_not_return_is_overdue_after_the_limit():
    assert looked(Watchdog(20.0), work(), until=100) == 21.0


def test_limit_is_by_default_generous_and_grows_with_what_calls_take():
    assert looked(Watchdog(), work(), until=10_000) == LEAST_LIMIT_SECONDS + 1
    assert looked(Watchdog(), work(longest=100.0), until=10_000) == 2001.0


def test_first_call_may_compute_for_an_hour():
    assert looked(Watchdog(20.0), work(is_first=True), until=3000, busy=True) is None
    late = looked(Watchdog(20.0), work(is_first=True), until=2 * COMPILE_SECONDS, busy=True)
    assert late == COMPILE_SECONDS + 1


def test_first_call_that_computes_nothing_is_overdue_as_any_other():
    assert looked(Watchdog(20.0), work(is_first=True), until=100) == 22.0


def test_time_in_which_the_process_was_stopped_does_not_count():
    watchdog = Watchdog(20.0)
    assert watchdog.look(1.0, 0.0, [work()]) is None
    assert watchdog.look(1001.0, 0.0, [work()]) is None
    assert watchdog.look(1002.0, 0.0, [work()]) is None


def test_slow_call_is_named_once_before_it_is_overdue():
    watchdog = Watchdog(40.0)
    answers = [watchdog.look(float(now), 0.0, [work()]) for now in range(1, 40)]
    assert [answer for answer in answers if answer is not None] == [SlowWork(work(), 11.0, 29.0)]


def test_nothing_under_way_is_never_overdue():
    watchdog = Watchdog(1.0)
    assert [watchdog.look(float(now), 0.0, []) for now in range(100)] == [None] * 100


def test_position_and_words_name_task_minibatch_and_records():
    assert position(SlowWork(work(), 4.0, 2.0)) == Position(7, 2, 3, "feed", 4.0)
    assert position(Overdue(work(), 9.0)) == Position(7, 2, 3, "feed", 9.0, is_overdue=True)
    assert position(Overdue(work(), 9.0)).of(LEASE.task) == (
        "feed of minibatch 3 of training task 7 (records 100 to 200 of a.recordio, epoch 1)"
    )
