"""How a simulated worker pulls and pushes, by the synchrony of its job.

The order of the calls is that of `crates/edl-ps/src/remote/replicas.rs`. What would wait in a
thread of a replica says "not yet", and is asked again a little later.

The model counts: a row of its table is of one record, and each training of that record adds one.
"""

import json
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache

import numpy as np

from elasticdl.backends.base import Initializer, ModelDescription, OptimizerSpec, TableDescription
from elasticdl.errors import ElasticdlError, NotDeclaredError
from tests.simulation.clockwork import Call, Kept, Sleep, Unanswered

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
OWED_SECONDS = 0.05  # then a replica hears of a minibatch that it has no key of
FIRST = range(1)


@dataclass(frozen=True)
class Step:
    """One minibatch under a lease."""

    lease: object
    index: int
    records: np.ndarray

    @property
    def numbers(self) -> tuple[int, int, int]:
        return self.lease.task.id, self.lease.fence, self.index

    @property
    def update(self) -> list[tuple[int, int]]:
        """What a move looks at."""
        return [(self.lease.task.id, self.index)]


@dataclass(frozen=True, eq=False)
class Computed:
    """A step with what was pulled for it, by replica."""

    step: Step
    pulled: dict
    is_mark: bool = False  # it has no gradient


class Elsewhere(Exception):
    """The model is with other replicas now; says where, or nothing."""


@dataclass
class Layout:
    """Where the replicas are, as a worker knows it."""

    number: int
    addresses: list[str]
    is_over: bool = False
    owed: dict[int, list[Computed]] = field(default_factory=lambda: defaultdict(list))
    """What each replica has not heard of: minibatches without a key there."""

    @property
    def all(self) -> range:
        return range(len(self.addresses))

    @property
    def others(self) -> range:
        return self.all[1:]

    def owed_to(self, replica: int, lease) -> list[Computed]:
        """Return what a replica has not heard of a lease."""
        return [each for each in self.owed[replica] if each.step.lease is lease]


class Asynchronous:
    """Each gradient is applied as it comes, at all replicas at the same time."""

    is_synchronous = is_in_order = False

    def __init__(self, worker) -> None:
        self.worker, self.job = worker, worker.job
        self.connection = self.job.scheduler.count("connection")
        self.layout = Layout(-1, [])

    def hear(self, route) -> None:
        """Take in what the master says."""
        if route.layout > self.layout.number:
            self.go_over(route.layout, route.addresses)
        elif route.layout == self.layout.number:
            for replica, address in enumerate(route.addresses):
                self.layout.addresses[replica] = address or self.layout.addresses[replica]

    def go_over(self, number: int, addresses) -> None:
        """Ask the replicas of another layout from now on."""
        self.layout.is_over = True
        self.layout = Layout(number, list(addresses))

    def asked(self, ask):
        """Ask the replicas of the layout that is known; if it is over, all of the next one."""
        while True:
            layout = self.layout
            try:
                return (yield from ask(layout))
            except Elsewhere as told:
                there = json.loads(str(told) or "{}")
                if self.layout is layout and there:
                    self.go_over(there["number"], there["addresses"])
                elif self.layout is layout:  # a successor does not know: the master will tell
                    yield Sleep(AGAIN_SECONDS)

    def call(self, layout: Layout, replica: int, work, updates=()):
        """Have a replica do something, wherever it is then; declare the model where it must be."""

        def find():
            if layout.is_over:
                raise Elsewhere
            return self.job.by_address(layout.addresses[replica])

        def asks(what, updates):
            return Call(
                find, self.enters(layout, replica, what, updates), is_in_order=self.is_in_order
            )

        while True:
            try:
                (answer,) = yield asks(work, updates)
            except NotDeclaredError:
                yield asks(declare, ())
            else:
                return answer

    def enters(self, layout: Layout, replica: int, work, updates):
        """Return what a replica does that is asked for something of a layout: it may wait."""

        def enter(node):
            is_now, told = self.job.entrance(node, layout.number, updates)
            if told is not None:
                raise Elsewhere(told)
            if is_now:
                return (work(node),)
            if self.is_in_order and not self.worker.is_alive:
                raise Unanswered
            return None

        def look(node):
            # As `Endpoint.move_to` and `Endpoint.end` have it: nobody waits where nobody is.
            if layout.is_over or self.job.by_address(layout.addresses[replica]) is not node:
                raise Unanswered
            return enter(node)

        def come(node):
            return enter(node) or Kept(lambda: look(node))

        return come

    def each(self, layout: Layout, replicas, work, updates=()):
        """Do something at some replicas, in any order; return what they answered."""
        answers = {}
        for replica in self.job.any_order(replicas):
            answers[replica] = yield from self.call(
                layout, replica, lambda node, number=replica: work(node, number), updates
            )
        return answers

    def everywhere(self, work, updates=()):
        """Do something at all replicas, in any order; return what they answered."""
        return (
            yield from self.asked(
                lambda layout: self.each(layout, layout.all, work(layout), updates)
            )
        )

    def declare(self):
        """Tell all replicas what the model is."""
        yield from self.everywhere(lambda _: lambda node, _: declare(node))

    def begin(self, lease):
        """Return the minibatch to begin with."""
        task, number = lease.task.id, self.job.fence(lease)
        begins = yield from self.everywhere(
            lambda _: lambda node, _: node.begin_task(self.connection, task, number, lease)
        )
        return min(begins.values())

    def end(self, lease):
        """Say that a lease is over."""
        for owed in self.layout.owed.values():
            owed[:] = [each for each in owed if each.step.lease is not lease]
        yield from ()

    def settle(self, lease):
        """Have each replica hear of all minibatches of a lease, before it is reported as done."""

        def settle(layout):
            for replica in self.job.any_order(layout.owed):
                if owed := layout.owed_to(replica, lease):
                    yield from self._hand_in(layout, replica, owed)

        yield from self.asked(settle)

    def _settle_late(self, layout, replica):
        """Have a replica hear of what it is owed, if no push does for a while."""
        while layout.owed[replica] and not layout.is_over:
            yield Sleep(OWED_SECONDS)
            if owed := layout.owed[replica]:
                with suppress(ElasticdlError, Elsewhere):  # the next push meets it again
                    first = layout.owed_to(replica, owed[0].step.lease)
                    yield from self._hand_in(layout, replica, first)

    def _hand_in(self, layout, replica, computed, is_sum=False):
        """Push steps that follow each other to a replica; return what it says of the last one."""
        updates = [update for each in computed for update in each.step.update]
        answer = yield from self.call(
            layout,
            replica,
            lambda node: self._take(node, layout, replica, computed, is_sum),
            updates,
        )
        owed = layout.owed[replica]
        owed[:] = [each for each in owed if each not in computed]
        return answer

    def pull(self, step: Step):
        """Pull what a step needs."""

        def work(layout):
            return lambda node, replica: node.reached().pull(
                [(0, keys_of(step.records, replica, layout))], True, step=step.numbers
            )

        return (yield from self.everywhere(work, step.update))

    def pull_several(self, steps):
        """Pull what steps that follow each other need with one request to each replica."""
        if len(steps) == 1:
            return [(yield from self.pull(steps[0]))]

        def work(layout):
            return lambda node, replica: node.reached().pull_several(
                [(0, keys_of(step.records, replica, layout)) for step in steps],
                len(steps),
                step=steps[0].numbers,
            )

        updates = [update for step in steps for update in step.update]
        answers = yield from self.everywhere(work, updates[:1])
        return [{at: pulled[n] for at, pulled in answers.items()} for n in range(len(steps))]

    def push(self, step: Step, pulled):
        """Push a step's gradient; return the version of replica 0."""
        return (yield from self.push_several([step], [pulled]))

    def push_several(self, steps, pulled):
        """Push the gradients of steps that follow each other together: their sum, or each."""
        computed = [Computed(*each) for each in zip(steps, pulled, strict=True)]
        return (yield from self.asked(lambda layout: self._push(layout, computed)))

    def _push(self, layout, computed):
        """Push to replica 0 and those that have a key; the others hear of it with a later frame."""
        is_sum = len(computed) > 1 and self.job.push_steps > 1
        spared = () if is_sum else [at for at in layout.others if self.spares(layout, at, computed)]
        answers = {}
        for replica in self.job.any_order(at for at in layout.all if at not in spared):
            owed = layout.owed_to(replica, computed[0].step.lease)
            if is_sum and owed:
                yield from self._hand_in(layout, replica, owed)
                owed = []
            frame = self.job.frame(owed, computed)
            answers[replica] = yield from self._hand_in(layout, replica, frame, is_sum)
        for replica in spared:
            marks = [replace(each, is_mark=True) for each in computed]
            layout.owed[replica] += self.job.owed(marks)
            if len(layout.owed[replica]) == len(computed):
                self.job.scheduler.spawn(self.worker, self._settle_late(layout, replica))
        return answers[0][0]

    def spares(self, layout, replica: int, computed) -> bool:
        """Return whether a replica has no key of steps, and may be owed that it hears of them."""
        has_room = len(layout.owed[replica]) + len(computed) <= self.job.most_owed
        keys = [keys_of(each.step.records, replica, layout) for each in computed]
        return has_room and self.job.is_without(keys)

    def _take(self, node, layout, replica, computed, is_sum):
        """Have a replica take the gradients of one frame."""
        client, first = node.reached(), computed[0].step
        task, number, index = self.job.named(*first.numbers)
        several = [
            (*gradient(client, layout, replica, each), NOTHING, NOTHING, len(each.step.records))
            for each in computed
        ]
        with node.held_to_its_fence(first.lease):
            if is_sum:
                return client.push_several(several, 1.0, task, number, index)
            if len(several) > 1:
                return self.job.pushed_each(client, several, task, number, index)
            *of_step, num_records = several[0]
            return client.push(*of_step, 1.0, task, number, index, num_records)


class Driven(Asynchronous):
    """What those have in common whose replicas say when.

    A replica that holds pulls and gradients lets them go when their connection breaks. Here none
    does, as long as its worker lives.
    """

    is_in_order = True

    def end(self, lease):
        task, number = lease.task.id, lease.fence
        yield from self.everywhere(lambda _: lambda node, _: node.driving().end_task(task, number))

    def pull_at(self, layout, step: Step, waits: bool):
        def pull(node, replica):
            keys = keys_of(step.records, replica, layout).tolist()
            return node.driving().pull(self.connection, step.numbers if waits else None, keys)

        return pull

    def push_at(self, layout, step: Step, pulled):
        is_same = len(pulled) == len(layout.all)
        oldest = min(pulled.values())

        def push(node, replica):
            keys = keys_of(step.records, replica, layout).tolist()
            with node.held_to_its_fence(step.lease):
                return node.driving().push(
                    self.connection,
                    self.job.named(*step.numbers),
                    keys,
                    [-1.0] * len(keys),
                    pulled[replica] if is_same else oldest,
                    len(step.records),
                )

        return push


class Bounded(Driven):
    """Pulls wait, so that no gradient comes later than the bound."""

    def pull(self, step: Step):
        return (yield from self.asked(lambda layout: self._pull(layout, step)))

    def _pull(self, layout, step: Step):
        while True:
            first = yield from self.each(
                layout, FIRST, self.pull_at(layout, step, waits=True), step.update
            )
            if first[0] is not None:
                break
            if self.worker.queue:  # a worker's pushes do not wait for its pulls
                yield from self.worker.hand_in(*self.worker.queue.popleft())
            else:
                yield Sleep(AGAIN_SECONDS)
        late = yield from self.each(
            layout, layout.others, self.pull_at(layout, step, waits=False), step.update
        )
        return first | late

    def push(self, step: Step, pulled):
        late = yield from self.asked(lambda layout: self._push(layout, step, pulled))
        self.job.staleness = max(self.job.staleness, *(found for _, found, _ in late.values()))
        return late[0][2]

    def _push(self, layout, step: Step, pulled):
        push = self.push_at(layout, step, pulled)
        late = yield from self.each(layout, layout.others, push, step.update)
        return late | (yield from self.each(layout, FIRST, push, step.update))


class Rounds(Driven):
    """A gradient waits until its round is complete."""

    is_synchronous = True

    def pull(self, step: Step):
        return (
            yield from self.everywhere(
                lambda layout: self.pull_at(layout, step, waits=False), step.update
            )
        )

    def push(self, step: Step, pulled):
        return (yield from self.asked(lambda layout: self._push(layout, step, pulled)))

    def _push(self, layout, step: Step, pulled):
        push = self.push_at(layout, step, pulled)
        yield from self.each(layout, layout.others, push, step.update)
        while True:
            joined = yield from self.each(layout, FIRST, push, step.update)
            made, _, version = joined[0]
            if made is not None:
                break
            yield Sleep(AGAIN_SECONDS)
        updates = [(task, index) for task, _, index in made.steps]
        yield from self.each(
            layout, layout.others, lambda node, _: node.driving().commit(made), updates
        )
        return version


def gradient(client, layout: Layout, replica: int, computed: Computed):
    """Return what was pulled and its gradients, cut for the replicas that there are."""
    records, pulled = computed.step.records, computed.pulled
    keys = records[:0] if computed.is_mark else keys_of(records, replica, layout)
    if len(pulled) == len(layout.all) and not computed.is_mark:
        return pulled[replica], [ONES[: len(keys)]]
    oldest = min(pulled.values(), key=lambda of_replica: of_replica.version)
    return client.with_sites(oldest, [(0, keys)]), [ONES[: len(keys)]]


def keys_of(records: np.ndarray, replica: int, layout: Layout) -> np.ndarray:
    """Return the records whose rows a replica has."""
    return _keys_of(records.tobytes(), replica, len(layout.addresses))


@cache
def _keys_of(records: bytes, replica: int, num_replicas: int) -> np.ndarray:
    keys = np.frombuffer(records, np.int64)
    return keys[replicas_of(keys, num_replicas) == replica]


def replicas_of(keys: np.ndarray, num_replicas: int) -> np.ndarray:
    """Return which replica has each key, as `crates/edl-store/src/route.rs` has it."""
    hashes = keys.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        hashes = (hashes ^ (hashes >> np.uint64(shift))) * np.uint64(factor)
    hashes ^= hashes >> np.uint64(31)
    return (hashes >> np.uint64(48)).astype(np.int64) * num_replicas >> 16


def declare(node) -> None:
    """Tell a replica what the model is."""
    node.reached().declare(MODEL, NOTHING, NOTHING)
