"""A tower of PyTorch computed by itself gives what it gives within the model, and its gradients."""

import numpy as np
import pytest

from elasticdl.errors import ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch import nn  # noqa: E402  # after the skip

from elasticdl.layers.torch import Embedding, Remote  # noqa: E402  # as above

pytestmark = pytest.mark.torch


class Clicks(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        tower = nn.Sequential(Embedding(None, 6, name="inner"), nn.Linear(6, 5), *layers)
        self.images = Remote(nn.Sequential(tower, nn.Linear(5, 2)), "images")
        self.outer = Embedding(None, 4, name="outer")
        self.out = nn.Linear(18, 1)

    def forward(self, ids):
        both = torch.cat([self.images(ids), self.outer(ids)], -1)
        return self.out(both.flatten(1))[:, 0]


def feed(dataset, mode, metadata):
    return torch.tensor(dataset.columns["ids"]), torch.tensor(dataset.columns["label"])


def loss(labels, predictions):
    return ((labels - predictions) ** 2).mean()


def optimizer(parameters):
    return torch.optim.SGD(parameters, 0.1)


def data_of(n=32):
    ids = np.random.default_rng(0).integers(0, 9, (n, 3))
    return {"ids": ids, "label": (ids.sum(1) % 5).astype(np.float32)}


def job_of(new_torch_job, model):
    return new_torch_job(data_of(), 32, model=model, feed=feed, loss=loss, optimizer=optimizer)


def test_gradients_of_a_tower_and_of_the_rest_are_those_of_the_whole_model(new_torch_job):
    job = job_of(new_torch_job, lambda: Clicks(nn.Tanh()))
    minibatch = next(job.minibatches(data_of(), 32))
    _, pulled, whole = job.computed(minibatch)
    names = [job.description.tables[k].name for k in job.backend.id_sites()]
    wanted = dict(zip(names, whole.row_grads, strict=True))
    (images,) = job.backend.towers()
    job.backend.place_towers()
    assert list(job.backend.id_sites()) == [2, names.index("outer")]
    given, outer = job.backend.ids(minibatch)
    unique, places = np.unique(given, return_inverse=True)
    own = np.concatenate([pulled.dense[part] for part in images.dense])
    (inner,) = images.ids(unique)
    rows = job.client.pull([(images.tables[0], inner)], training=True).rows
    outputs = images.forward(unique, rows, own, True)
    rest = job.client.pull([(job.backend.id_sites()[1], outer)], training=True).rows
    shaped = outputs[places].reshape(*given.shape, images.dim)
    found = job.backend.train_step(minibatch, [shaped, *rest], pulled.dense, pulled.state)
    assert found.loss == pytest.approx(whole.loss, rel=1e-6)
    merged = np.zeros((len(unique), images.dim), np.float32)
    np.add.at(merged, places.ravel(), found.row_grads[0].reshape(-1, images.dim))
    (of_rows,), of_dense = images.backward(unique, merged, rows, own)
    dense, at = found.dense_grad.copy(), 0
    for part in images.dense:
        size = part.stop - part.start
        dense[part] += of_dense[at : at + size]
        at += size
    np.testing.assert_allclose(dense, whole.dense_grad, atol=1e-6)
    np.testing.assert_allclose(found.row_grads[1], wanted["outer"], atol=1e-6)
    summed = np.zeros_like(of_rows)
    np.add.at(summed, places.ravel(), wanted["inner"].reshape(-1, 6))
    np.testing.assert_allclose(of_rows, summed, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "words"),
    [(lambda: nn.BatchNorm1d(5), "keeps no state"), (lambda: nn.Dropout(0.5), "draws nothing")],
)
def test_a_tower_that_is_more_than_a_function_of_an_id_is_refused(new_torch_job, layer, words):
    job = job_of(new_torch_job, lambda: Clicks(layer()))
    with pytest.raises(ModelError, match=words):
        job.backend.towers()


def test_parameters_that_the_rest_uses_too_are_refused(new_torch_job):
    class Shares(Clicks):
        def forward(self, ids):
            return super().forward(ids) + self.images.tower[1].bias.sum()

    job = job_of(new_torch_job, Shares)
    with pytest.raises(ModelError, match="uses it outside"):
        job.backend.place_towers()
