"""Pushes computed minibatches to the holders of the parameters: alone, together or by halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from elasticdl.backends.base import Trainer
from elasticdl.config import JobConfig
from elasticdl.worker.exchange import Exchange, Halves
from elasticdl.worker.parameters import Committed, ComputedMinibatch, PendingPull
from elasticdl.worker.protocol import LeaseProtocol
from elasticdl.worker.running import Item, Running
from elasticdl.worker.spans import Place, Span
from elasticdl.worker.stores import StoreExchange


class Pushing:
    """Pushes the gradients of steps, each with its learning rate."""

    def __init__(
        self,
        config: JobConfig,
        exchange: Exchange,
        trainer: Trainer | None,
        protocol: LeaseProtocol[PendingPull],
        span: Callable[[str, Place | None], Span],
    ) -> None:
        """Put it together.

        Args:
            config: The job's settings.
            exchange: The target of gradients.
            trainer: Has the schedule of learning rates; None in jobs that do not train.
            protocol: Has the pull that waits for a push.
            span: Counts the time of a stage.
        """
        self._sums = config.training.push_steps > 1
        self._exchange, self._trainer = exchange, trainer
        self._protocol, self._span = protocol, span

    def hand_in(self, items: Sequence[Item]) -> Sequence[Committed]:
        """Push minibatches that follow each other; return what became of each.

        A minibatch that the compute stage has pushed is not pushed again, but its rows' half is.
        """
        stores, halves = self._exchange.stores, self._exchange.halves
        if len(items) > 1 and stores is not None:
            return self._push_several(stores, items)
        pushed = []
        for item in items:
            done = item.committed or self.push(item)
            if halves is not None:
                done = replace(done, staleness=self._push_rows(halves, item))
            pushed.append(done)
        return pushed

    def push(self, item: Item) -> Committed:
        """Push a step or its dense half, or report that it is left out."""
        exchange, lease = self._exchange, item.running.lease
        assert item.parameters is not None
        version = item.parameters.version
        if item.result is None:
            with self._span("reduce" if exchange.has_halves else "push", None):
                exchange.skip(lease, item.index)
            return Committed(version, 0)
        assert item.minibatch is not None
        item.learning_rate = self._learning_rate(item.running, version)
        numbers = (item.learning_rate, lease, item.index, item.minibatch.num_records)
        with self._span("reduce" if exchange.has_halves else "push", item.place):
            item.computed = computed = self._completed(item)
            if exchange.has_halves:
                return exchange.push(computed.given, computed.result, *numbers)
            if exchange.stores is not None:
                exchange.stores.name(item.minibatch, item.ids)
            pending = self._protocol.pending
            return exchange.push(computed.given, computed.result, *numbers, pending)

    def _completed(self, item: Item) -> ComputedMinibatch:
        assert item.minibatch is not None
        assert item.parameters is not None
        assert item.result is not None
        num_records = item.minibatch.num_records
        return self._exchange.completed(
            ComputedMinibatch(item.parameters, item.result, num_records)
        )

    def _push_several(self, stores: StoreExchange, items: Sequence[Item]) -> Sequence[Committed]:
        """Push the gradients of minibatches together; return what became of each.

        With `--push_steps` it is their sum, with the learning rate of the last one.
        """
        running, minibatches = items[0].running, []
        lease, index = running.lease, items[0].index
        with self._span("push", items[0].place):
            for item in items:
                assert item.minibatch is not None
                stores.name(item.minibatch, item.ids)
                minibatches.append(self._completed(item))
            if self._sums:
                rate = self._learning_rate(running, minibatches[-1].given.version)
                return [stores.push_several(minibatches, rate, lease, index)] * len(items)
            rates = [self._learning_rate(running, each.given.version) for each in minibatches]
            return stores.push_each(minibatches, rates, lease, index)

    def _push_rows(self, halves: Halves, item: Item) -> int:
        """Push the rows' half of a step or leave it out; return its staleness."""
        lease = item.running.lease
        assert item.minibatch is not None
        with self._span("push", item.place):
            if item.result is None:
                halves.stores.skip(lease, item.index)
                return 0
            assert item.computed is not None
            halves.stores.name(item.minibatch, item.ids)
            return halves.push_rows(
                item.computed.given,
                item.computed.result,
                item.learning_rate,
                lease,
                item.index,
                item.minibatch.num_records,
                self._protocol.pending,
            )

    def _learning_rate(self, running: Running, version: int) -> float:
        given = running.lease.learning_rate  # by a callback, or one of the job before
        assert self._trainer is not None, "only training jobs have training tasks"
        if given is None or self._trainer.has_schedule:
            given = self._trainer.learning_rate(version)
        running.learning_rate = given
        return running.learning_rate
