"""The prepare stage of minibatches: their ids, and the parameters that they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elasticdl.backends.base import Predictor
from elasticdl.job import Label
from elasticdl.worker.activity import Activity, Thread
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.parameters import Parameters, PendingPull, Step
from elasticdl.worker.protocol import LeaseProtocol
from elasticdl.worker.running import Item
from elasticdl.worker.spans import Place, Span


class Pulling:
    """Pulls parameters when the protocol has room for more steps in flight."""

    def __init__(
        self,
        model: Predictor,
        exchange: Exchange,
        protocol: LeaseProtocol[PendingPull],
        span: Callable[[str, Place | None], Span],
        activity: Activity,
        wait: Callable[[Callable[[], bool]], None],
        pulls_with_push: bool,
    ) -> None:
        """Put the stage together.

        Args:
            model: Finds the ids of minibatches.
            exchange: The source of parameters.
            protocol: Decides what happens to a lease.
            span: Counts the time of a stage.
            activity: Counts the time of the worker.
            wait: Waits until the protocol agrees.
            pulls_with_push: Whether the push of a step brings back the rows of the next one.
        """
        self._model, self._exchange, self._protocol = model, exchange, protocol
        self._span, self._activity, self._wait = span, activity, wait
        self._pulls_with_push = pulls_with_push

    def fetch(self, items: Sequence[Item]) -> None:
        """Take the minibatches of a pull into flight and pull the parameters for them."""
        brought, first = None, items[0]
        # Where ids depend on parameters, computing the ids reads parameters. So the room in flight,
        # which limits staleness, is waited for first.
        if first.running.is_training and self._model.ids_need_parameters:
            with self._span("staleness wait", None):
                self._wait_for_room(items, None)
        for item in items:
            assert item.minibatch is not None
            with self._span("ids", item.place):
                item.ids = self._model.ids(item.minibatch)
        self._activity.at(Thread.PREPARE, Label.WAIT_FOR_PARAMETERS)
        if first.running.is_training and not self._model.ids_need_parameters:
            with self._span("staleness wait", None):
                brought = self._wait_for_room(items, self._pull_with_push(first))
        if brought is not None:
            first.parameters = brought
        elif len(items) == 1:
            self.pull(first)
        else:
            self._pull_several(items)

    def _pull_with_push(self, item: Item) -> PendingPull | None:
        if not self._pulls_with_push:
            return None
        return PendingPull(item.ids, Step(item.running.lease, item.index))

    def _wait_for_room(self, items: Sequence[Item], pull: PendingPull | None) -> Parameters | None:
        """Wait until the steps may be pulled; return parameters that the push before brought."""
        running, indices = items[0].running, [item.index for item in items]
        self._wait(lambda: self._protocol.may_pull(running, indices, pull))
        return pull.parameters if pull is not None else None

    def _pull_several(self, items: Sequence[Item]) -> None:
        first = items[0]
        with self._span("pull", first.place):
            step = Step(first.running.lease, first.index)
            pulled = self._exchange.pull_several([item.ids for item in items], step)
        for item, parameters in zip(items, pulled, strict=True):
            item.parameters = parameters

    def pull(self, item: Item) -> None:
        """Pull the parameters for one minibatch."""
        step = Step(item.running.lease, item.index) if item.running.is_training else None
        with self._span("pull", item.place):
            item.parameters = self._exchange.pull(item.ids, step)
