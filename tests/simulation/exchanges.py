"""How a simulated worker pulls and pushes, by the synchrony of its job.

The order of the calls is that of `crates/edl-ps/src/remote/replicas.rs`. What would wait in a
thread of a replica says "not yet", and is asked again a little later.

The model counts: a row of its table is of one record, and each training of that record adds one.
"""

import json
from dataclasses import asdict, dataclass

import numpy as np

from elasticdl.backends.base import Initializer, ModelDescription, OptimizerSpec, TableDescription
from elasticdl.errors import NotDeclaredError
from tests.simulation.clockwork import Call, Sleep

MODEL = json.dumps(
    asdict(
        ModelDescription(
            tables=(
                TableDescription(
                    "counts", 1, Initializer("constant", {"value": 0.0}), OptimizerSpec("sgd")
                ),
            ),
            dense=(),
            state=(),
            optimizer=OptimizerSpec("sgd"),
            seed=0,
        )
    )
)
NOTHING = np.zeros(0, np.float32)
ONES = np.full((100, 1), -1.0, np.float32)  # gradients
AGAIN_SECONDS = 0.02
FIRST = range(1)


@dataclass(frozen=True)
class Step:
    """One minibatch under a lease."""

    lease: object
    index: int
    records: np.ndarray

    @property
    def numbers(self) -> tuple[int, int, int]:
        return self.lease.task.id, self.lease.number, self.index


class Asynchronous:
    """Each gradient is applied as it comes, at all replicas at the same time."""

    is_synchronous = is_in_order = False

    def __init__(self, worker) -> None:
        self.worker, self.job = worker, worker.job
        self.connection = self.job.scheduler.count("connection")
        self.others = range(1, self.job.num_ps)
        self.all = range(self.job.num_ps)

    def call(self, replica: int, work):
        """Have a replica do something, wherever it is then; declare the model where it must be."""
        call = Call(
            lambda: self.job.by_address(self.worker.route.addresses[replica]),
            work,
            is_in_order=self.is_in_order,
        )
        while True:
            try:
                return (yield call)
            except NotDeclaredError:
                yield Call(call.find, declare)

    def each(self, replicas, work):
        """Do something at some replicas, in any order; return what they answered."""
        answers = {}
        for replica in self.job.any_order(replicas):
            answers[replica] = yield from self.call(
                replica, lambda node, number=replica: work(node, number)
            )
        return answers

    def declare(self):
        """Tell all replicas what the model is."""
        yield from self.each(self.all, lambda node, _: declare(node))

    def begin(self, lease):
        """Return the minibatch to begin with."""
        task, number = lease.task.id, self.job.fence(lease)
        begins = yield from self.each(
            self.all, lambda node, _: node.begin_task(self.connection, task, number, lease)
        )
        return min(begins.values())

    def end(self, lease):
        """Say that a lease is over."""
        yield from ()

    def pull(self, step: Step):
        """Pull what a step needs."""
        return (
            yield from self.each(
                self.all,
                lambda node, replica: node.reached().pull(
                    [(0, self.job.of(step.records, replica))], True, step=step.numbers
                ),
            )
        )

    def push(self, step: Step, pulled):
        """Push a step's gradient; return the version of replica 0."""
        task, number, index = self.job.named(*step.numbers)

        def work(node, replica):
            grads = ONES[: len(self.job.of(step.records, replica))]
            client, num_records = node.reached(), len(step.records)
            with node.held_to_its_fence(step.lease):
                return client.push(
                    pulled[replica],
                    [grads],
                    NOTHING,
                    NOTHING,
                    1.0,
                    task,
                    number,
                    index,
                    num_records,
                )

        answers = yield from self.each(self.all, work)
        return answers[0][0]

    def push_several(self, steps, pulled):
        """Push the gradients of steps that follow each other together."""
        task, number, index = self.job.named(*steps[0].numbers)

        def work(node, replica):
            several = [
                (
                    mine[replica],
                    [ONES[: len(self.job.of(step.records, replica))]],
                    NOTHING,
                    NOTHING,
                    len(step.records),
                )
                for step, mine in zip(steps, pulled, strict=True)
            ]
            client = node.reached()
            with node.held_to_its_fence(steps[0].lease):
                return client.push_several(several, 1.0, task, number, index)

        answers = yield from self.each(self.all, work)
        return answers[0][0]


class Driven(Asynchronous):
    """What those have in common whose replicas say when.

    A replica that holds pulls and gradients lets them go when their connection breaks. Here none
    does, as long as its worker lives.
    """

    is_in_order = True

    def end(self, lease):
        task, number = lease.task.id, lease.number
        yield from self.each(self.all, lambda node, _: node.driving().end_task(task, number))

    def pull_at(self, node, replica: int, step: Step, waits: bool):
        keys = self.job.of(step.records, replica).tolist()
        return node.driving().pull(self.connection, step.numbers if waits else None, keys)

    def push_at(self, node, replica: int, step: Step, pulled):
        keys = self.job.of(step.records, replica).tolist()
        with node.held_to_its_fence(step.lease):
            return node.driving().push(
                self.connection,
                self.job.named(*step.numbers),
                keys,
                [-1.0] * len(keys),
                pulled[replica],
                len(step.records),
            )


class Bounded(Driven):
    """Pulls wait, so that no gradient comes later than the bound."""

    def pull(self, step: Step):
        while True:
            version = yield from self.call(0, lambda node: self.pull_at(node, 0, step, True))
            if version is not None:
                break
            if self.worker.queue:  # a worker's pushes do not wait for its pulls
                yield from self.worker.hand_in(*self.worker.queue.popleft())
            else:
                yield Sleep(AGAIN_SECONDS)
        late = yield from self.each(
            self.others, lambda node, replica: self.pull_at(node, replica, step, False)
        )
        return {0: version, **late}

    def push(self, step: Step, pulled):
        def work(node, replica):
            return self.push_at(node, replica, step, pulled)

        late = yield from self.each(self.others, work)
        late |= yield from self.each(FIRST, work)
        self.job.staleness = max(self.job.staleness, *(found for _, found, _ in late.values()))
        return late[0][2]


class Rounds(Driven):
    """A gradient waits until its round is complete."""

    is_synchronous = True

    def pull(self, step: Step):
        return (
            yield from self.each(
                self.all, lambda node, replica: self.pull_at(node, replica, step, False)
            )
        )

    def push(self, step: Step, pulled):
        yield from self.each(
            self.others, lambda node, replica: self.push_at(node, replica, step, pulled)
        )
        while True:
            made, _, version = yield from self.call(
                0, lambda node: self.push_at(node, 0, step, pulled)
            )
            if made is not None:
                break
            yield Sleep(AGAIN_SECONDS)
        yield from self.each(self.others, lambda node, _: node.driving().commit(made))
        return version


def declare(node) -> None:
    """Tell a replica what the model is."""
    node.reached().declare(MODEL, NOTHING, NOTHING)
