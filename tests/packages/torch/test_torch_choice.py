"""Which backend a model file gets, what is imported for it, and what a worker's memory holds."""

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

pytestmark = pytest.mark.torch

LOAD = """
import sys
from pathlib import Path
from elasticdl.backends.load import has_tables, load_trainer
from elasticdl.config import ModelSection
from elasticdl.data.base import Metadata
from elasticdl.model_spec import load_model_spec
spec = load_model_spec(ModelSection(model_zoo=Path(sys.argv[1]), model_def="m." + sys.argv[2]))
trainer = load_trainer(spec, Metadata(), 0, 2**21, 1, False)
if "torch" in sys.modules:
    import torch
    assert torch.get_num_threads() == 1
print(type(trainer).__name__, *(name in sys.modules for name in ("torch", "tensorflow", "keras")))
"""

MODELS = """
def in_torch():
    import torch
    return torch.nn.Linear(2, 1)

def in_keras():
    import keras
    return keras.Sequential([keras.layers.Dense(1)])

def in_numpy():
    import elasticdl
    return elasticdl.ArrayModel([], None, None, None)

def nothing():
    return 5

def feed(dataset, mode, metadata):
    return dataset
"""


def load(folder, function, imports=""):
    (folder / "m.py").write_text(imports + MODELS)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder), function],
        capture_output=True,
        text=True,
        timeout=250,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("imports", ["", "import torch\n", "import torch\nimport keras\n"])
def test_a_module_of_pytorch_is_trained_by_pytorch(imports, tmp_path):
    found = load(tmp_path, "in_torch", imports)
    has_keras = "keras" in imports
    assert found == f"TorchTrainer True {has_keras} {has_keras}"


@pytest.mark.parametrize("imports", ["", "import keras\n", "import torch\nimport keras\n"])
def test_a_model_of_keras_is_trained_by_keras(imports, tmp_path):
    assert load(tmp_path, "in_keras", imports) == f"KerasTrainer {'torch' in imports} True True"


def test_a_model_of_arrays_needs_no_framework(tmp_path):
    assert load(tmp_path, "in_numpy") == "NumpyTrainer False False False"
    assert load(tmp_path, "in_numpy", "import torch\n") == "NumpyTrainer True False False"


def test_something_else_is_refused(tmp_path):
    assert load(tmp_path, "nothing", "import torch\n").endswith(
        "expected a keras.Model, a torch.nn.Module or an elasticdl.ArrayModel, found builtins.int"
    )


LIMITED = """
import json, resource, sys
from dataclasses import asdict
import numpy as np
import torch
from torch import nn
from elasticdl import Mode
from elasticdl._core import PsClient, Store
from elasticdl.backends.load import load_trainer
from elasticdl.data.base import Metadata, Records
from elasticdl.layers.torch import Embedding
from elasticdl.model_spec import ModelSpec

ROWS = 2**28  # of 64 elements: 64 GiB

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = {layer}(ROWS, 64)
        self.out = nn.Linear(64, 1)

    def forward(self, ids):
        return self.out(self.table(ids).mean(1))

def feed(dataset, mode, metadata):
    return dataset.columns["ids"], np.ones((len(dataset), 1), np.float32)

data = 1024 * int(
    next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]
)
resource.setrlimit(resource.RLIMIT_DATA, (data + 2**30, data + 2**30))
spec = ModelSpec(
    Model, lambda y, p: ((y - p) ** 2).mean(), lambda p: torch.optim.Adam(p, lr=0.01), feed,
    None, None, None, None,
)
trainer = load_trainer(spec, Metadata(), 0, 0, 1, False)
records = Records(0, columns=dict(ids=np.random.default_rng(0).integers(ROWS, size=(4096, 8))))
minibatches = list(trainer.minibatches(iter([records]), Mode.TRAINING, 256, 0))
description = trainer.build(minibatches[0])
client = PsClient.in_process(Store())
client.declare(json.dumps(asdict(description)), *trainer.initial_values())
client.begin_task(0, 1)
for index, minibatch in enumerate(minibatches):
    pulled = client.pull([(0, ids) for ids in trainer.ids(minibatch)], training=True)
    result = trainer.train_step(minibatch, pulled.rows, pulled.dense, pulled.state)
    client.push(
        pulled, result.row_grads, result.dense_grad, result.state_delta, 0.01, 0, 1, index, 256
    )
print(sum(len(keys) for keys, _ in client.scan(0)))
"""


@pytest.mark.parametrize("layer", ["Embedding", "nn.Embedding"])
def test_a_table_of_64_gib_trains_in_a_gib(layer):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.replace("{layer}", layer)],
        capture_output=True,
        text=True,
        timeout=250,
    )
    if layer == "Embedding":
        assert done.returncode == 0, done.stderr
        assert 30_000 < int(done.stdout) <= 4096 * 8
    else:
        assert "memory" in done.stderr  # the limit holds
