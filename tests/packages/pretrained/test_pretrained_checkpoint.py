"""A table begins with the rows of a table of the same name in a checkpoint of another model."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from elasticdl._core import PsClient, Store
from elasticdl.backends.base import Initializer, ModelDescription, OptimizerSpec, TableDescription
from elasticdl.checkpoints.versions import MANIFEST
from elasticdl.errors import ConfigError
from elasticdl.packages.pretrained.rows import begin_with_pretrained

NOTHING = np.zeros(0, np.float32)
IDS = np.array([3, 2**62, 11])


def model(kind, *names):
    rule = OptimizerSpec(kind)
    return ModelDescription(
        tables=tuple(
            TableDescription(name, 2, Initializer("normal", {"mean": 0.0, "stddev": 1.0}), rule)
            for name in names
        ),
        dense=(), state=(), optimizer=rule, seed=0,
    )  # fmt: skip


def client_of(store, *model_of):
    client = PsClient.in_process(store)
    client.declare(json.dumps(asdict(model(*model_of))), NOTHING, NOTHING)
    return client


@pytest.fixture
def checkpoint(tmp_path):
    """Return a checkpoint with trained rows, and the rows of its second table."""
    store = Store()
    client = client_of(store, "adam", "a", "b")
    pulled = client.pull([(0, IDS), (1, IDS)], training=True)
    gradients = [np.ones((3, 2), np.float32)] * 2
    client.begin_task(0, 1)
    client.push(pulled, gradients, NOTHING, NOTHING, 0.1, 0, 1, 0, 1)
    folder = tmp_path / "version-00000001"
    folder.mkdir()
    entries = [json.loads(entry) for entry in client.checkpoint(str(folder))]
    manifest = {"format": 1, "version": 1, "replicas": entries}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder, client.pull([(1, IDS)], training=False).rows[0]


@pytest.mark.parametrize("which", ["the checkpoint", "the folder of checkpoints"])
def test_rows_are_those_of_the_table_of_the_same_name(checkpoint, which):
    folder, expected = checkpoint
    source = folder if which == "the checkpoint" else folder.parent
    store = Store()
    begin_with_pretrained(store, f"b={source}")

    client = client_of(store, "torch_sgd", "b", "c")

    np.testing.assert_array_equal(client.pull([(0, IDS)], training=False).rows[0], expected)


def test_a_table_that_the_checkpoint_does_not_have_is_refused(checkpoint):
    with pytest.raises(ConfigError, match=r"expected a table 'c' in the checkpoint .*found a, b"):
        begin_with_pretrained(Store(), f"c={checkpoint[0]}")
