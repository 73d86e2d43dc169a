"""A new job begins with a checkpoint of rows and vectors together, or apart, as it needs them."""

import json
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest

from elasticdl._core import PsClient, PsServer, Store, seal_manifest
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
    VariableDescription,
)
from elasticdl.checkpoints.dense import DENSE, begin_from
from elasticdl.checkpoints.hand_over import write_hand_over
from elasticdl.checkpoints.remote import Sender
from elasticdl.checkpoints.versions import MANIFEST
from elasticdl.checkpoints.writing import write_checkpoint
from elasticdl.errors import CheckpointError
from elasticdl.locations import parse

TOKEN = b"a token of this test"
ADAM = OptimizerSpec("adam")
IDS = np.array([3, 2**62, 11, 500])
MODEL = ModelDescription(
    tables=(
        TableDescription("rows", 2, Initializer("normal", {"mean": 0.0, "stddev": 1.0}), ADAM),
    ),
    dense=(VariableDescription("kernel", (5,), 0),),
    state=(VariableDescription("mean", (3,), 0),),
    optimizer=ADAM,
    seed=7,
)
OF_ROWS = replace(MODEL, dense=(), state=())
OF_VECTORS = replace(MODEL, tables=())
DENSE_VALUES, STATE_VALUES = np.ones(5, np.float32), np.zeros(3, np.float32)
NOTHING = np.zeros(0, np.float32)


@pytest.fixture
def serve():
    """Return a function that gives a client of a model, whose parts are in some stores."""
    with ExitStack() as stack:

        def served(model, *stores):
            servers = [PsServer(store, "127.0.0.1", 0, TOKEN) for store in stores]
            for server in servers:
                stack.callback(server.stop)
            client = PsClient.connect([server.address for server in servers], TOKEN, 0, 20.0)
            dense = DENSE_VALUES if model.dense else NOTHING
            client.declare(
                json.dumps(asdict(model)), dense, STATE_VALUES if model.state else NOTHING
            )
            return client

        yield served


def train(client, model, task, num_steps):
    """Make updates that differ, each of all rows."""
    client.begin_task(task, 1)
    for index in range(num_steps):
        sites = [(0, IDS)] if model.tables else []
        pulled = client.pull(sites, training=True)
        rows = [np.full((4, 2), index - 1.5, np.float32)] if sites else []
        dense = np.arange(5, dtype=np.float32) - index if model.dense else NOTHING
        state = np.full(3, 0.5, np.float32) if model.state else NOTHING
        client.push(pulled, rows, dense, state, 0.1, task, 1, index, 8)


def values(client, model):
    """Return version, rows, dense and state."""
    pulled = client.pull([(0, IDS)] if model.tables else [], training=False)
    return [pulled.version, *pulled.rows, pulled.dense, pulled.state]


def write_whole(client, folder):
    entries = [json.loads(entry) for entry in client.checkpoint(str(folder))]
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "replicas": entries}))


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_rows_and_vectors_of_one_checkpoint_go_on_apart(serve, tmp_path):
    together = serve(MODEL, Store(0, 2), Store(1, 2))
    train(together, MODEL, 1, 3)
    write_whole(together, tmp_path)
    train(together, MODEL, 2, 3)

    stores = [begin_from(tmp_path, part, 3, has_dense=False) for part in range(3)]
    rows = serve(OF_ROWS, *stores)
    vectors = serve(OF_VECTORS, begin_from(tmp_path, has_rows=False))
    train(rows, OF_ROWS, 1, 3)  # the task is a new job's
    train(vectors, OF_VECTORS, 1, 3)

    version, of_rows, dense, state = values(together, MODEL)
    assert version == 6
    assert_equal(values(rows, OF_ROWS), [version, of_rows, NOTHING, NOTHING])
    assert_equal(values(vectors, OF_VECTORS), [version, dense, state])


def test_rows_and_vectors_that_lie_apart_go_on_together(serve, place, tmp_path):
    checkpoint = written_apart(serve, place, tmp_path, num_updates=3)
    expected = serve(MODEL, Store())
    train(expected, MODEL, 1, 3)
    train(expected, MODEL, 2, 3)

    stores = [begin_from(checkpoint, part, 3) for part in range(3)]
    together = serve(MODEL, *stores)
    train(together, MODEL, 1, 3)

    assert_equal(values(together, MODEL), values(expected, MODEL))


def test_a_job_that_wants_one_part_takes_it_from_a_url(serve, tmp_path):
    place = parse(f"memory://{tmp_path}")
    checkpoint = written_apart(serve, place, tmp_path, num_updates=3)
    scratch = tmp_path / "fetched"

    stores = [begin_from(checkpoint, part, 3, has_dense=False) for part in range(3)]
    rows = serve(OF_ROWS, *stores)
    vectors = serve(OF_VECTORS, begin_from(checkpoint, has_rows=False, scratch=scratch))

    together = serve(MODEL, begin_from(checkpoint))
    version, of_rows, dense, state = values(together, MODEL)
    assert_equal(values(rows, OF_ROWS), [version, of_rows, NOTHING, NOTHING])
    assert_equal(values(vectors, OF_VECTORS), [version, dense, state])
    assert list(scratch.iterdir()) == []  # nothing of what was fetched stays


def test_vectors_alone_are_fetched_of_a_checkpoint_that_has_both(serve, tmp_path):
    place = parse(f"memory://{tmp_path}")
    store = Store()
    client = serve(MODEL, store)
    train(client, MODEL, 1, 3)
    sender = Sender(tmp_path / "scratch")

    def write(folder):
        return sender.write(folder, lambda here: [store.checkpoint(here)])

    checkpoint = write_checkpoint(place, 3, "m", write)
    for file in checkpoint.glob("*rows*"):
        file.unlink()

    vectors = serve(OF_VECTORS, begin_from(checkpoint, has_rows=False))

    version, _, dense, state = values(client, MODEL)
    assert_equal(values(vectors, OF_VECTORS), [version, dense, state])


def test_dense_parameters_that_lack_a_byte_are_no_checkpoint(serve, tmp_path):
    place = parse(f"memory://{tmp_path}")
    store, sender = Store(), Sender(tmp_path / "scratch")
    train(serve(OF_VECTORS, store), OF_VECTORS, 1, 1)

    def write(folder):
        (entry,) = sender.write(parse(folder), lambda here: [store.checkpoint(here)])
        (vectors,) = parse(folder).glob("*vectors*")
        vectors.write_bytes(vectors.read_bytes()[:-1])
        return entry

    with pytest.raises(CheckpointError, match=r"vectors.* expected \d+ bytes, found \d+"):
        write_hand_over(place / DENSE, write)
    assert not (place / DENSE / MANIFEST).exists()


def test_the_version_is_that_of_the_vectors_where_rows_count_more(serve, tmp_path):
    write_apart(serve, tmp_path, num_updates=2)

    together = serve(MODEL, begin_from(tmp_path))

    vectors = serve(OF_VECTORS, Store())
    train(vectors, OF_VECTORS, 1, 2)
    version, _, dense, state = values(together, MODEL)
    assert_equal([version, dense, state], values(vectors, OF_VECTORS))
    assert version == 2
    write_whole(together, tmp_path / "next")  # its rows are not of later versions
    again = serve(MODEL, begin_from(tmp_path / "next"))
    assert_equal(values(again, MODEL), values(together, MODEL))


def test_parts_of_different_models_are_refused(serve, tmp_path):
    write_apart(serve, tmp_path, num_updates=3)
    manifest = tmp_path / DENSE / MANIFEST
    content = json.loads(manifest.read_text().replace('"seed": 7', '"seed": 8'))
    del content["checksum"]
    manifest.write_text(seal_manifest(json.dumps(content, indent=1)))

    with pytest.raises(CheckpointError, match=r"is of another model than .*the seed is 8 here"):
        begin_from(tmp_path)


def write_apart(serve, folder, num_updates):
    """Write what a hybrid job does after three minibatches, in so many rounds."""
    rows = serve(OF_ROWS, Store(0, 2), Store(1, 2))
    train(rows, OF_ROWS, 1, 3)
    write_whole(rows, folder)
    store = Store()
    train(serve(OF_VECTORS, store), OF_VECTORS, 1, num_updates)
    write_hand_over(folder / DENSE, store.checkpoint)


def written_apart(serve, place, scratch, num_updates):
    """Write such a checkpoint as a job does, in a folder or behind a URL; return where it is."""
    rows = [Store(0, 2), Store(1, 2)]
    train(serve(OF_ROWS, *rows), OF_ROWS, 1, 3)
    dense = Store()
    train(serve(OF_VECTORS, dense), OF_VECTORS, 1, num_updates)
    senders = [Sender(scratch / name) for name in ("ps-0", "ps-1", "worker")]

    def entries_of(store, sender, folder):
        return sender.write(folder, lambda here: [store.checkpoint(here)])

    def write(folder):
        own = partial(entries_of, dense, senders[2])
        write_hand_over(folder / DENSE, lambda part: own(parse(part))[0])
        parts = zip(rows, senders[:2], strict=True)
        return [entry for part in parts for entry in entries_of(*part, folder)]

    return write_checkpoint(place, 3, "m", write)
