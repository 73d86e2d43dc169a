"""`--torch_compile`: training steps are compiled, with the losses of those that are not."""

import shutil

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl.errors import ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch import nn  # noqa: E402  # after the skip
from torch.nn import functional as F  # noqa: E402  # as above

from elasticdl.layers.torch import Embedding, EmbeddingBag  # noqa: E402  # as above

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="there is no g++, with which PyTorch compiles"
)
# A first compilation takes long on a machine that does other things too.
pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]


def make_columns(count=100, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(40, size=(count, 3)),
        "x": rng.normal(size=(count, 5)).astype(np.float32),
        "y": rng.integers(2, size=(count, 1)).astype(np.float32),
    }


class Net(nn.Module):
    """Two tables, batch norm and dropout."""

    def __init__(self):
        super().__init__()
        self.vectors, self.bags = Embedding(40, 4), EmbeddingBag(40, 2, mode="sum")
        self.norm = nn.BatchNorm1d(5)
        self.layers = nn.Sequential(
            nn.Linear(19, 7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, 1)
        )  # fmt: skip

    def forward(self, features):
        rows = self.vectors(features["ids"])
        rows *= 0.5
        rows = rows.flatten(1)
        bags = self.bags(features["ids"])
        return self.layers(torch.cat([rows, bags, self.norm(features["x"])], 1))


def functions(model=Net):
    def feed(dataset, mode, metadata):
        features = {"ids": dataset.columns["ids"], "x": dataset.columns["x"]}
        return features if mode == Mode.PREDICTION else (features, dataset.columns["y"])

    return {
        "model": model,
        "feed": feed,
        "loss": lambda labels, predictions: F.binary_cross_entropy_with_logits(predictions, labels),
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    }


@needs_compiler
def test_losses_and_parameters_are_those_of_steps_that_are_not_compiled(new_torch_job):
    columns = make_columns()
    plain, compiled = (
        new_torch_job(columns, 32, torch_compile=is_compiled, **functions())
        for is_compiled in (False, True)
    )
    for epoch in range(3):  # minibatches of 32, and a last one of 4
        plain.train(columns, 32, seed=epoch)
        compiled.train(columns, 32, seed=epoch)

    assert len(compiled.losses) == 12
    np.testing.assert_allclose(compiled.losses, plain.losses, rtol=1e-4)
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
    ids = np.arange(40)
    for table in (0, 1):
        rows = [
            job.client.pull([(table, ids)], training=False).rows[0] for job in (compiled, plain)
        ]
        np.testing.assert_allclose(*rows, rtol=1e-3, atol=1e-4)
    stats = torch._dynamo.utils.counters["stats"]
    assert stats["unique_graphs"] >= 1  # something was compiled at all


@needs_compiler
def test_a_model_whose_compiled_loss_differs_is_refused(new_torch_job):
    class Noisy(Net):
        def forward(self, features):
            noise = float(np.random.default_rng().normal())
            return super().forward(features) + noise

    with pytest.raises(ModelError, match=r"is .* compiled and .* otherwise; expected the same"):
        new_torch_job(make_columns(), 32, torch_compile=True, **functions(Noisy))


def test_without_a_compiler_it_is_refused(new_torch_job, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ModelError, match="the compiler 'no-such-compiler' is not there; install"):
        new_torch_job(make_columns(), 32, torch_compile=True, **functions())


def test_models_of_other_frameworks_are_refused(new_torch_job):
    import elasticdl

    arrays = functions(lambda: elasticdl.ArrayModel([], None, None, None))
    with pytest.raises(ModelError, match="expected a model in PyTorch, found one of NumPy arrays"):
        new_torch_job(make_columns(), 32, torch_compile=True, **arrays)
