"""Dense parameters are read from a checkpoint as the stores have written it."""

import json

import numpy as np
import pytest

from elasticdl._core import PsClient, PsServer, Store
from elasticdl.errors import CheckpointError
from elasticdl.packages.trackers.tensorboard import dense_parameters

TOKEN = b"a token of this test"
SGD = {"kind": "sgd", "params": {}}
MODEL = {
    "tables": [],
    "dense": [
        {"name": "kernel", "shape": [7, 100], "offset": 0},
        {"name": "bias", "shape": [], "offset": 700},
    ],
    "state": [],
    "optimizer": SGD,
    "seed": 1,
}


def test_parameters_have_their_names_and_shapes_whatever_the_number_of_replicas(tmp_path):
    stores = [Store(replica, 3) for replica in range(3)]
    servers = [PsServer(store, "127.0.0.1", 0, TOKEN) for store in stores]
    dense = np.arange(701, dtype=np.float32)
    try:
        client = PsClient.connect([server.address for server in servers], TOKEN, 0, 20.0)
        client.declare(json.dumps(MODEL), dense, np.zeros(0, np.float32))
        folder = tmp_path / "version-00000000"
        folder.mkdir()
        entries = [json.loads(entry) for entry in client.checkpoint(str(folder))]
    finally:
        for server in servers:
            server.stop()
    found = dense_parameters(folder, entries)
    assert list(found) == ["kernel", "bias"]
    np.testing.assert_array_equal(found["kernel"], dense[:700].reshape(7, 100))
    assert found["bias"] == 700.0
    with pytest.raises(CheckpointError, match="its dense parameters cannot be read"):
        dense_parameters(folder)
    (folder / "manifest.json").write_text(json.dumps({"replicas": entries[::-1]}))
    np.testing.assert_array_equal(dense_parameters(folder)["kernel"], found["kernel"])
