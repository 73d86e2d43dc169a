"""A hybrid job with one worker computes what plain Keras computes, with optimizers that clip too.

Rows go to a store, dense parameters around a ring of one, through the worker's own exchange.
"""

import pytest

from elasticdl._core import PsClient, PsServer, RingListener, Store
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from elasticdl.job import Lease, Shard, Task, TaskKind
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.all_reduce.exchange import RingExchange
from elasticdl.packages.all_reduce.replica import Replica
from elasticdl.packages.all_reduce.ring_member import RingMember
from elasticdl.packages.keras.trainer import KerasTrainer
from elasticdl.worker.exchange import Exchange
from elasticdl.worker.parameters import Step
from elasticdl.worker.route import Route
from elasticdl.worker.stores import StoreExchange
from tests.numerics import test_keras_numerics as keras_numerics
from tests.numerics.test_keras_numerics import BATCH, CLIPPED, OPTIMIZERS, Ours, Plain, assert_equal
from tests.packages.all_reduce.ring_workers import TOKEN, Meeting

pytestmark = pytest.mark.keras

_fresh_names = keras_numerics._fresh_names
LEASE = Lease(Task(0, TaskKind.TRAINING, Shard("memory", 0, 1)), 1)
RULES = {
    "adam": OPTIMIZERS["adam"],
    **{name: CLIPPED[name] for name in ("clipnorm", "clipvalue")},
}


class OfBoth(Ours):
    """The same steps, through the exchange of a hybrid job."""

    worker_id, name = 0, "worker 0"

    def __init__(self, optimizer):
        spec = ModelSpec(
            keras_numerics.model, keras_numerics.loss, optimizer, keras_numerics.feed, *[None] * 4
        )
        self.backend = KerasTrainer(spec, Metadata(), seed=5, embedding_threshold_bytes=0)
        self.minibatches = keras_numerics.minibatches(self.backend)
        self.description = self.backend.build(self.minibatches[0])
        self._replica = Replica(self._serve, None)
        meeting = Meeting()
        listener = RingListener("127.0.0.1", 0, TOKEN)
        self.member = RingMember(
            lambda said: meeting.attend(self, said),
            listener,
            listener.address,
            self._replica,
            lambda: self._replica.address,
        )
        meeting.add(self)
        rows = StoreExchange(PsClient.in_process(Store()), self.backend, Route())
        ring = RingExchange(self.backend, self._replica, self.member)
        self._exchange, self._ring = Exchange(rows, ring), ring
        self._exchange.declare(self.description)
        self._exchange.start_index(LEASE)

    def _serve(self, store):
        return PsServer(store, "127.0.0.1", 0, TOKEN, is_copy=True)

    @property
    def client(self):
        """For `parameters`, which pulls rows of tables by number, and the dense ones."""
        return self

    def pull(self, sites, training):
        return self._exchange.look_up(sites, training)

    def train(self):
        losses = []
        for index, minibatch in enumerate(self.minibatches):
            ids = self.backend.ids(minibatch)
            step = Step(LEASE, index)
            pulled = self._exchange.take_dense(self._exchange.pull(ids, step), step)
            result = self.backend.train_step(minibatch, pulled.rows, pulled.dense, pulled.state)
            numbers = (self.backend.learning_rate(pulled.version), LEASE, index, BATCH)
            self._exchange.push(pulled, result, *numbers)
            self._exchange.halves.push_rows(pulled, result, *numbers)
            losses.append(result.loss)
        return losses

    def close(self):
        self._ring.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RULES)
def test_losses_and_parameters_are_those_of_plain_keras(name):
    ours = OfBoth(RULES[name])
    try:
        assert_equal(ours, Plain(RULES[name], ours.parameters()))
    finally:
        ours.close()


def test_clipping_by_the_norm_of_both_halves_is_refused():
    with pytest.raises(ModelError, match=r"global_clipnorm.*expected clipnorm or clipvalue"):
        OfBoth(CLIPPED["global_clipnorm"])
