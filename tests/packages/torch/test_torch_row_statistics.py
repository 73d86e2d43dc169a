"""What a PyTorch model counts of its ids: equal to what NumPy counts, and read as features."""

import json

import pytest

from tests.unit.backends.conftest import make_spec
from tests.unit.backends.counted import KEPT, Trained

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from elasticdl.layers.torch import Embedding, EmbeddingBag  # noqa: E402  # as above
from elasticdl.packages.torch.export import NOTES  # noqa: E402  # after the skip

pytestmark = pytest.mark.torch


class Bags(torch.nn.Module):
    """Sums rows by a layer of bags that begin at offsets."""

    def __init__(self):
        super().__init__()
        self.item = EmbeddingBag(None, 4, mode="sum", statistics=KEPT)
        self.last = torch.nn.LazyLinear(1)

    def forward(self, features):
        ids = features["ids"]
        rows = self.item(ids.reshape(-1), torch.arange(0, ids.numel(), ids.shape[1]))
        return self.last(torch.log(rows.abs() + 1.0)).squeeze(-1)


class Rows(torch.nn.Module):
    """Sums rows by itself."""

    def __init__(self):
        super().__init__()
        self.item = Embedding(None, 4, statistics=KEPT)
        self.last = torch.nn.LazyLinear(1)

    def forward(self, features):
        rows = self.item(features["ids"]).sum(1)
        return self.last(torch.log(rows.abs() + 1.0)).squeeze(-1)


def feed(dataset, mode, metadata):
    columns = dataset.columns
    return {"ids": columns["ids"], "price": columns["price"]}, columns["click"]


def optimizer(parameters):
    return torch.optim.Adagrad(parameters, 0.1)


@pytest.mark.parametrize("model", [Rows, Bags])
def test_a_torch_model_counts_its_ids_and_reads_them_as_features(model, tmp_path):
    loss = torch.nn.functional.mse_loss
    job = Trained(make_spec(model=model, feed=feed, loss=loss, optimizer=optimizer))
    assert [table.name for table in job.description.tables] == ["item", "item_statistics"]
    job.check(1)
    pulled = job.exchange.look_up([], training=False)
    job.trainer.export(tmp_path, pulled.dense, pulled.state, job.exchange.client)
    assert (tmp_path / "tables" / "item_statistics.safetensors").exists()
    if model is Rows:  # of bags, torch.export takes the number of records for a constant
        assert json.loads((tmp_path / NOTES).read_text())["program"]
