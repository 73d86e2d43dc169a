"""Trains one model by each strategy in this process, through real stores, replicas and rings.

Nothing here knows a framework: a trainer is what `elasticdl.backends.base.Trainer` says.
"""

import json
import sys
import threading
import types
from dataclasses import asdict, dataclass
from itertools import count

import numpy as np

from elasticdl._core import PsClient, PsServer, RingListener, Store
from elasticdl.checkpoints.hand_over import write_hand_over
from elasticdl.data.base import Records
from elasticdl.job import Mode
from elasticdl.packages.all_reduce.collective import Group, WorldView, form_ring
from elasticdl.packages.all_reduce.collective.rounds import OfferedMinibatch
from elasticdl.packages.all_reduce.replica import Replica

TOKEN = bytes(32)
STEPS, MINIBATCH = 10, 12
numbers = count()  # of what has to have a name of its own


@dataclass
class Trained:
    """What a training ends with.

    values: of dense parameters and state, by name. rows: of each table, by name.
    """

    values: dict
    rows: dict
    losses: list


def module_of(text, folder):
    """Import a text as a file, as a job does."""
    name = f"random_model_{next(numbers)}"
    path = folder / f"{name}.py"
    path.write_text(text)
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(text, str(path), "exec"), vars(module))
    return module


def ids_of(rng, num_ids):
    """Return two columns of ids in which each occurs."""
    return np.stack([rng.permutation(num_ids), rng.permutation(num_ids)], 1)


def minibatch_of(trainer, columns, mode=Mode.TRAINING):
    """Return some records, given as columns, as one minibatch of a trainer."""
    records = iter([Records(0, columns=columns)])
    (found,) = trainer.minibatches(records, mode, len(columns["x"]), 0)
    return found


def built(trainer, columns_of):
    """Build a model; return its description and its minibatches, whole and in two parts each."""
    minibatches = [minibatch_of(trainer, columns_of(index)) for index in range(STEPS)]
    description = trainer.build(minibatches[0])
    halves = [[], []]
    for columns in map(columns_of, range(STEPS)):
        for half, part in zip(halves, (slice(5), slice(5, MINIBATCH)), strict=True):
            parts = {name: values[part] for name, values in columns.items()}
            half.append(minibatch_of(trainer, parts))
    return description, minibatches, list(zip(*halves, strict=True))


def flat_of(run, description):
    """Return the dense vector and the state that a training ended with."""
    return [
        np.concatenate([np.zeros(0, np.float32), *(run.values[v.name].ravel() for v in of)])
        for of in (description.dense, description.state)
    ]


def declared(client, trainer, description):
    """Declare a model, as the first worker does; return the client."""
    spec = json.dumps(asdict(description))
    client.declare(spec, *first_values(trainer), list(trainer.given_rows()))
    client.begin_task(0, 1)
    return client


def first_values(trainer):
    """Return copies of the initial values; later the model has others."""
    if not hasattr(trainer, "first_values"):
        trainer.first_values = [values.copy() for values in trainer.initial_values()]
    return [values.copy() for values in trainer.first_values]


def begin(trainer, description, num_rows):
    """Return what a training begins with."""
    client = declared(PsClient.in_process(Store()), trainer, description)
    return read(client, description, num_rows, training=True)


def read(client, description, num_rows, losses=(), training=False):
    """Return all that a store has, given the number of rows of each table."""
    ids = [(k, np.arange(num_rows)) for k in range(len(description.tables))]
    pulled = client.pull(ids, training=training)
    values = {
        v.name: flat[v.offset : v.offset + int(np.prod(v.shape))].reshape(v.shape).copy()
        for flat, of in ((pulled.dense, description.dense), (pulled.state, description.state))
        for v in of
    }
    names = [table.name for table in description.tables]
    return Trained(values, dict(zip(names, pulled.rows, strict=True)), list(losses))


def train(client, trainer, minibatches, first=0):
    """Make a step of each minibatch; return the losses."""
    losses = []
    for index, minibatch in enumerate(minibatches, first):
        sites = list(zip(trainer.id_sites(), trainer.ids(minibatch), strict=True))
        pulled = client.pull(sites, training=True)
        result = trainer.train_step(minibatch, pulled.rows, pulled.dense, pulled.state)
        client.push(
            pulled, result.row_grads, result.dense_grad, result.state_delta,
            trainer.learning_rate(pulled.version), 0, 1, index, minibatch.num_records,
        )  # fmt: skip
        losses.append(result.loss)
    return losses


def local(trainer, description, minibatches, num_rows):
    """Train with one store in this process."""
    client = declared(PsClient.in_process(Store()), trainer, description)
    return read(client, description, num_rows, train(client, trainer, minibatches))


def with_ps(trainer, description, minibatches, num_rows, num_replicas=2):
    """Train with ps replicas behind sockets."""
    stores = [Store(index, num_replicas) for index in range(num_replicas)]
    servers = [PsServer(store, "127.0.0.1", 0, TOKEN) for store in stores]
    try:
        client = PsClient.connect([server.address for server in servers], TOKEN, 0, 30.0)
        declared(client, trainer, description)
        return read(client, description, num_rows, train(client, trainer, minibatches))
    finally:
        for server in servers:
            server.stop()


def restored(trainer, description, minibatches, num_rows, folder):
    """Train half of it, write a checkpoint, and go on from that in another store."""
    store, half = Store(), len(minibatches) // 2
    client = declared(PsClient.in_process(store), trainer, description)
    losses = train(client, trainer, minibatches[:half])
    write_hand_over(folder, lambda to: store.checkpoint(to, 60.0))
    client = declared(PsClient.in_process(Store.restore(str(folder))), trainer, description)
    losses += train(client, trainer, minibatches[half:], first=half)
    return read(client, description, num_rows, losses)


def all_reduce(trainer, description, pairs):
    """Train by two ranks, each with a half of every global minibatch."""
    replicas = [Replica(lambda store: PsServer(store, "127.0.0.1", 0, TOKEN), None) for _ in "12"]
    for replica in replicas:
        replica.declare(description, *first_values(trainer))
        replica.begin("")
    listeners = [RingListener("127.0.0.1", 0, TOKEN) for _ in replicas]
    world = tuple(listener.address for listener in listeners)
    groups = [None, None]

    def join(rank):
        ring = form_ring(WorldView(1, rank, world), listeners[rank], timeout_seconds=100)
        groups[rank] = Group(ring)

    _together(join)
    try:
        for index, pair in enumerate(pairs):
            steps = []
            for replica, minibatch in zip(replicas, pair, strict=True):
                pulled = replica.client.pull([], training=False)
                steps.append(trainer.train_step(minibatch, [], pulled.dense, pulled.state))
            counted = [OfferedMinibatch(k, 1, index, m.num_records) for k, m in enumerate(pair)]

            def reduce(rank, steps=steps, counted=counted, pair=pair):
                given = steps[rank].dense_grad, steps[rank].state_delta
                out = tuple(np.empty_like(values) for values in given)
                groups[rank].mean(given, out, pair[rank].num_records)
                rules, is_last = replicas[rank].rules, rank == 1
                if rules.has_exact:
                    rules.put(groups[rank].sum(rules.exact(given[1], is_last)), out[1])
                replicas[rank].count(counted, trainer.learning_rate(replicas[rank].version), out)

            _together(reduce)
        ends = [read(replica.client, description, 0) for replica in replicas]
        for name, value in ends[0].values.items():
            np.testing.assert_array_equal(value, ends[1].values[name], err_msg=name)
        return ends[0]
    finally:
        for group, replica in zip(groups, replicas, strict=True):
            group.close()
            replica.close()


def _together(work):
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(250)


def assert_same(found, expected, tolerance, where):
    """Compare the values that both have; rows of tables may be a dense parameter on one side."""
    for name, value in expected.items():
        ours = found.values.get(name)
        if ours is None:
            ours = found.rows.get(name.removesuffix(".weight"))
        if ours is None:
            continue
        np.testing.assert_allclose(
            ours, value, rtol=tolerance, atol=tolerance, err_msg=f"{where}: {name}"
        )
