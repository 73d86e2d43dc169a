"""How the loop pulls and pushes what a real store has."""

import time

import pytest

from elasticdl.errors import (
    GapError,
    StaleLeaseError,
    StaleParametersError,
)
from elasticdl.job import Outcome
from elasticdl.worker.parameters import Step
from elasticdl.worker.stores import StoreExchange
from tests.unit.worker.scripted_run import NAN_SPEC, Run, training


class TooStaleOnce(StoreExchange):
    """Refuses the first push of each third minibatch; keeps the leases that ended."""

    def __init__(self, client, backend):
        super().__init__(client, backend)
        self.refused, self.ended = set(), []

    def push(self, pulled, result, learning_rate, lease, index, *rest):
        step = (lease.task.id, lease.number, index)
        if index % 3 == 1 and step not in self.refused:
            self.refused.add(step)
            raise StaleParametersError("too old")
        return super().push(pulled, result, learning_rate, lease, index, *rest)

    def end_task(self, lease):
        self.ended.append((lease.task.id, lease.number))


class CountsPulls(StoreExchange):
    """Counts the training steps that were pulled by themselves."""

    def __init__(self, client, backend):
        super().__init__(client, backend)
        self.pulls = 0

    def pull(self, ids, step=None):
        self.pulls += step is not None
        return super().pull(ids, step)


@pytest.mark.parametrize("settings", [{"use_async": False}, {"max_staleness": 0}])
def test_what_may_not_be_pulled_before_the_push_comes_with_its_answer(settings):
    run = Run([training(1, 0, 20), training(2, 20, 40)], **settings)
    run.use(CountsPulls)
    waits_for_the_next(run)
    run()
    assert run.counts() == [1.0] * 40
    assert [(r.outcome, r.num_records) for r in run.master.reports] == [(Outcome.DONE, 20)] * 2
    assert run.exchange.pulls == 1


def waits_for_the_next(run):
    """Have each step computed when the next one's ids are there, all but the last."""
    train_step, left = run.trainer.train_step, [9]

    def train_when_the_next_is_prepared(*args):
        deadline = time.monotonic() + 30
        while left[0] and run.worker._protocol.pending is None:
            assert time.monotonic() < deadline
            time.sleep(0)
        left[0] -= 1
        return train_step(*args)

    run.trainer.train_step = train_when_the_next_is_prepared


def test_steps_that_may_be_pulled_ahead_are_not_kept_for_the_push():
    run = Run([training(1, 0, 20), training(2, 20, 40)], max_staleness=2)
    run.use(CountsPulls)
    run()
    assert run.counts() == [1.0] * 40
    assert run.exchange.pulls == 10


class CountsPushes(StoreExchange):
    """Notes which minibatches are pushed together; may lose the lease's next push."""

    def __init__(self, client, backend):
        super().__init__(client, backend)
        self.pushes, self.skips, self.gap = [], [], None

    def push(self, pulled, result, rate, lease, index, *more):
        self._note(lease, index, 1)
        return super().push(pulled, result, rate, lease, index, *more)

    def push_several(self, minibatches, rate, lease, index):
        self._note(lease, index, len(minibatches))
        return super().push_several(minibatches, rate, lease, index)

    def skip(self, lease, index):
        self.skips.append((lease.task.id, index))
        super().skip(lease, index)

    def _note(self, lease, index, count):
        if self.gap == (lease.task.id, lease.number, index):
            raise GapError("a replica lacks minibatches")
        self.pushes.append((lease.task.id, index, count))


class RefusesToSettle(StoreExchange):
    """Has a replica refuse what it was owed of the first task."""

    refusal = None

    def settle_task(self, lease):
        if lease.task.id == 1:
            raise self.refusal


@pytest.mark.parametrize(
    ("refusal", "reports"),
    [
        (GapError("minibatches are lost"), [(1, Outcome.RETURNED), (2, Outcome.DONE)]),
        (StaleLeaseError("a newer lease has begun"), [(2, Outcome.DONE)]),
    ],
)
def test_a_task_that_a_replica_has_not_heard_of_is_not_reported_as_done(refusal, reports):
    run = Run([training(1, 0, 20), training(2, 20, 40)])
    run.use(RefusesToSettle)
    run.exchange.refusal = refusal
    run()
    assert [(r.task_id, r.outcome) for r in run.master.reports] == reports


TOGETHER = {"distribution_strategy": "ParameterServerStrategy", "push_steps": 4}


def test_gradients_of_a_task_are_pushed_together_and_its_end_pushes_the_rest():
    run = Run([training(1, 0, 20), training(2, 20, 40)], **TOGETHER)
    run.use(CountsPushes)
    run()
    assert run.counts() == [1.0] * 40
    assert run.exchange.pushes == [(1, 0, 4), (1, 4, 1), (2, 0, 4), (2, 4, 1)]
    assert [(r.outcome, r.num_records) for r in run.master.reports] == [(Outcome.DONE, 20)] * 2
    assert run.client.audit()[0].tolist() == [[1, 5, 20], [2, 5, 20]]
    assert run.worker.progress().num_minibatches == 10
    assert run.worker.progress().model_version == 4


def test_a_minibatch_that_is_left_out_is_told_between_the_pushes_around_it():
    run = Run([training(1, 0, 40)], spec=NAN_SPEC, on_nan="skip", **TOGETHER)
    run.use(CountsPushes)
    run()
    ((_, skipped),) = run.exchange.skips
    assert sum(run.counts()) == 36
    assert sum(count for _, _, count in run.exchange.pushes) == 9
    for _, index, count in run.exchange.pushes:
        assert skipped not in range(index, index + count)
    assert run.client.audit()[0].tolist() == [[1, 10, 36]]


def test_a_later_lease_of_a_task_pushes_each_minibatch_by_itself():
    run = Run([training(1, 0, 20, number=2)], **TOGETHER)
    run.use(CountsPushes)
    run()
    assert run.exchange.pushes == [(1, index, 1) for index in range(5)]
    assert run.counts() == [1.0] * 20 + [0.0] * 20


def test_minibatches_whose_push_is_refused_are_given_back_together():
    run = Run([training(1, 0, 40), training(2, 0, 20)], **TOGETHER)
    run.use(CountsPushes)
    run.exchange.gap = (1, 1, 4)
    run()
    assert run.exchange.pushes == [(1, 0, 4), (2, 0, 4), (2, 4, 1)]
    assert [r.outcome for r in run.master.reports] == [Outcome.RETURNED, Outcome.DONE]
    assert run.client.audit()[0].tolist() == [[1, 4, 16], [2, 5, 20]]


EXCHANGED = {"distribution_strategy": "ParameterServerStrategy", "exchange_minibatches": 4}


class CountsFrames(StoreExchange):
    """Notes how many minibatches are pulled and pushed together."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.pulls, self.pushes = [], []
        self.gap = None

    def pull_several(self, ids, first):
        self.pulls.append((first.lease.task.id, first.index, len(ids)))
        return super().pull_several(ids, first)

    def push(self, given, result, rate, lease, index, *rest):
        if self.gap == index:
            raise GapError("a replica lacks minibatches")
        return super().push(given, result, rate, lease, index, *rest)

    def push_each(self, minibatches, rates, lease, index):
        if self.gap is not None and index <= self.gap < index + len(minibatches):
            before = self.gap - index
            super().push_each(minibatches[:before], rates[:before], lease, index)
            raise GapError("a replica lacks minibatches")
        self.pushes.append((lease.task.id, index, len(minibatches)))
        return super().push_each(minibatches, rates, lease, index)


@pytest.mark.parametrize("number", [1, 2])
def test_minibatches_of_a_task_are_pulled_and_pushed_together_each_an_update(number):
    run = Run([training(1, 0, 24, number=number), training(2, 24, 40)], **EXCHANGED)
    run.use(CountsFrames)
    run()
    assert run.counts() == [1.0] * 40
    assert run.exchange.pulls == [(1, 0, 4), (1, 4, 2), (2, 0, 4)]
    assert run.worker.progress().model_version == run.worker.progress().num_minibatches == 10
    assert [(r.outcome, r.num_records) for r in run.master.reports] == [
        (Outcome.DONE, 24),
        (Outcome.DONE, 16),
    ]
    assert all(report.staleness_max <= 2 + 4 - 1 for report in run.master.reports)
    assert run.client.audit()[0].tolist() == [[1, 6, 24], [2, 4, 16]]


def test_a_lease_is_given_back_where_one_of_several_pushes_is_refused():
    run = Run([training(1, 0, 40), training(2, 0, 20)], **EXCHANGED)
    run.use(CountsFrames)
    run.exchange.gap = 6
    run()
    assert [r.outcome for r in run.master.reports] == [Outcome.RETURNED, Outcome.DONE]
    assert run.client.audit()[0].tolist() == [[1, 6, 24], [2, 5, 20]]


def test_a_minibatch_that_is_left_out_cuts_what_is_pushed_together():
    run = Run([training(1, 0, 40)], spec=NAN_SPEC, on_nan="skip", **EXCHANGED)
    run.use(CountsFrames)
    run()
    assert sum(run.counts()) == 36
    assert run.client.audit()[0].tolist() == [[1, 10, 36]]


def test_a_gradient_that_came_too_late_for_its_round_is_computed_again():
    run = Run([training(1, 0, 20), training(2, 20, 40)], use_async=False)
    run.use(TooStaleOnce)
    run()
    assert run.counts() == [1.0] * 40
    assert [(r.outcome, r.num_records) for r in run.master.reports] == [(Outcome.DONE, 20)] * 2
    assert [r.num_recomputed for r in run.master.reports] == [2, 2]
    assert run.exchange.ended == [(1, 1), (2, 1)]


def test_a_lease_whose_pull_was_given_up_is_returned_for_somebody_to_go_on_with():
    run = Run([training(1, 0, 20), training(2, 20, 40)], max_staleness=2)
    run.use(TooStaleOnce)
    run()
    assert [r.outcome for r in run.master.reports] == [Outcome.RETURNED] * 2
    assert [r.num_records for r in run.master.reports] == [4, 4]
    assert {(1, 1), (2, 1)} <= set(run.exchange.ended)
    assert sum(run.counts()) == 8


def test_dense_parameters_are_pulled_once_in_so_many_steps_and_rows_in_each():
    pulls = []

    class Client:
        """Notes what is pulled."""

        def pull(self, sites, training, *, step, vectors_of):
            pulls.append((step[2], vectors_of))
            return f"pulled {step[2]}"

    exchange = StoreExchange(Client(), None, get_model_steps=3)
    lease = training(1, 0, 20)
    for index in range(5):
        exchange.pull([], Step(lease, index))
    assert pulls == [(0, None), (1, "pulled 0"), (2, "pulled 1"), (3, None), (4, "pulled 3")]


def test_staleness_is_reported_with_its_histogram():
    run = Run([training(1, 0, 40)], max_staleness=2)()
    (report,) = run.master.reports
    assert sum(report.staleness_histogram) == report.num_minibatches == 10
    assert report.staleness_max <= 2
