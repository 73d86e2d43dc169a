"""The Criteo DeepFM without some of what makes elasticdl fast, for `benchmarks/ablation.py`.

Each worker imports its model file before it builds anything. This one puts in the place of an
optimisation what would be there without it; the environment variable `SWITCHED_OFF` has the names,
with commas between them. The model is that of `model_zoo/criteo/deepfm.py`, unchanged.
"""

import os
import threading
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf

from criteo.deepfm import eval_metrics_fn, feed, forward, loss, optimizer, sgd
from elasticdl.backends.keras.feed import choice, runner, ways
from elasticdl.backends.keras.model import lookups, step
from elasticdl.config import JobConfig
from elasticdl.worker import loop, spans, stores

__all__ = ["eval_metrics_fn", "feed", "forward", "loss", "optimizer", "sgd"]


def vectorised_feed():
    """Run the maps of `feed` record by record, still in one compiled function a minibatch."""

    def refuse(noted, sample):
        raise NotImplementedError("switched off")

    choice.compile_vectorised = refuse


def own_feed():
    """Leave `feed` to `tf.data`, as the user wrote it: traced once, run for each task."""

    def choose(user, sample):
        structure = user.structure(user(sample, user.drawing()))
        return ways.Plain(user, structure, ways.Pipeline(user, sample))

    runner.choose = choose


def parsing_together():
    """Parse each minibatch in a call of its own."""
    choice.records_together = lambda parsed, num_records: 1


def parsing_in_rust():
    """Have TensorFlow parse the records, vectorised."""
    choice.fastest = lambda function, sample: (choice.on_tensors(function), "switched off")


def pulling_ahead():
    """Pull the parameters of a step when the push before it is answered."""
    JobConfig.pipeline_depth = property(lambda config: 0)


def overlap():
    """Let only one thread of a worker do something at a time: feed, ids, pull, compute or push."""
    turn = threading.RLock()
    enter, leave = spans.Span.__enter__, spans.Span.__exit__
    taken = {"feed", "ids", "pull", "compute", "push"}

    def enter_alone(span):
        if span.stage in taken:
            turn.acquire()
        return enter(span)

    def leave_alone(span, *raised):
        leave(span, *raised)
        if span.stage in taken:
            turn.release()

    spans.Span.__enter__, spans.Span.__exit__ = enter_alone, leave_alone


def merging_in_rust():
    """Look through ids, spread rows and add gradients up in NumPy; Rust gets unique ids."""
    pull, push = stores.StoreExchange.pull, stores.StoreExchange.push

    def pull_unique(self, ids, step=None):
        if step is None:
            return pull(self, ids)
        found = [np.unique(site, return_inverse=True) for site in ids]
        pulled = pull(self, [unique for unique, _ in found], step)
        places = [inverse.ravel() for _, inverse in found]
        rows = [
            part[place].reshape(*site.shape, part.shape[-1])
            for part, place, site in zip(pulled.rows, places, ids, strict=True)
        ]
        return Spread(pulled, rows, places)

    def push_unique(self, spread, result, *others):
        grads = [
            added_up(grad.reshape(len(place), -1), place)
            for grad, place in zip(result.row_grads, spread.places, strict=True)
        ]
        # What is pending has other ids than those of this step; it is pulled by itself.
        return push(self, spread.pulled, replace(result, row_grads=grads), *others[:-1], None)

    stores.StoreExchange.pull, stores.StoreExchange.push = pull_unique, push_unique


@dataclass(frozen=True)
class Spread:
    """What a pull of unique ids brought, and the rows of every occurrence."""

    pulled: object
    rows: list
    places: list

    dense = property(lambda self: self.pulled.dense)
    state = property(lambda self: self.pulled.state)
    version = property(lambda self: self.pulled.version)


def added_up(grads, places):
    """Add up the gradients (n, dim) of the same place, each of which occurs."""
    order = np.argsort(places, kind="stable")
    first = np.flatnonzero(np.diff(places[order], prepend=-1))
    return np.add.reduceat(grads[order], first, axis=0)


def shared_ids():
    """Give each table ids of its own, so that they are looked through once for each table."""
    collect = lookups.Collector.ids

    def copied(self, minibatch, pull):
        return [ids.copy() for ids in collect(self, minibatch, pull)]

    lookups.Collector.ids = copied


def flat_calls():
    """Call the step as TensorFlow calls it, and copy what it is given as `tf.constant` does."""

    class Called:
        def __init__(self, concrete):
            self._concrete = concrete

        def __call__(self, *inputs):
            return list(self._concrete(*inputs))

    step.FlatFunction, step.as_tensor = Called, tf.constant


def priorities():
    """Let the threads that pull, push and feed run at the priority of the one that computes."""
    loop.run_after_others = lambda: None


for name in filter(None, os.environ.get("SWITCHED_OFF", "").split(",")):
    globals()[name]()
