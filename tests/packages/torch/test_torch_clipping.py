"""Gradients of a PyTorch model are clipped in a job as the optimizer does in a plain loop."""

import numpy as np
import pytest

from elasticdl.errors import ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch import nn  # noqa: E402  # after the skip
from torch.nn import functional as F  # noqa: E402  # as above

from elasticdl.layers.torch import Embedding  # noqa: E402  # as above
from elasticdl.optimizers.torch import clip_grad_norm, clip_grad_value  # noqa: E402  # as above

pytestmark = pytest.mark.torch

NUM_IDS = 10


def make_columns(count=40):
    rng = np.random.default_rng(3)
    return {
        "ids": rng.permuted(np.tile(np.arange(NUM_IDS), (count, 1)), axis=1)[:, :4],
        "y": rng.normal(size=(count, 1)).astype(np.float32) * 20,
    }


def feed(dataset, mode, metadata):
    return dataset.columns["ids"], dataset.columns["y"]


def loss(labels, predictions):
    return F.mse_loss(predictions, labels)


class Net(nn.Module):
    def __init__(self, embedding=Embedding):
        super().__init__()
        self.vectors, self.out = embedding(NUM_IDS, 3), nn.Linear(12, 1)

    def forward(self, ids):
        return self.out(self.vectors(ids).flatten(1))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


WAYS = {
    "norm": lambda p: clip_grad_norm(sgd(p), 2.0),
    "value": lambda p: clip_grad_value(sgd(p), 0.3),
    "norm of a schedule": lambda p: torch.optim.lr_scheduler.StepLR(
        clip_grad_norm(sgd(p), 2.0), step_size=3, gamma=0.5
    ),
    "norm of a part": lambda p: clip_grad_norm(sgd([q for q in p if q.dim() > 1]), 2.0),
    "norm without tables": lambda p: clip_grad_norm(
        sgd([q for q in p if q.shape[0] != NUM_IDS]), 2.0
    ),
}


def run_both(optimizer, new_torch_job):
    """Return the parameters after ten steps of a job, and of a plain loop."""
    columns = make_columns()
    job = new_torch_job(columns, 20, model=Net, feed=feed, loss=loss, optimizer=optimizer)
    plain = Net(nn.Embedding)
    with torch.no_grad():
        vector_to(plain, job)
    made = optimizer(list(plain.parameters()))
    inner = getattr(made, "optimizer", made)
    for epoch in range(5):
        for minibatch in job.minibatches(columns, 20, seed=epoch):
            inner.zero_grad()
            loss(minibatch.labels, plain(minibatch.features)).backward()
            inner.step()
            if made is not inner:
                made.step()
            job.step(minibatch)
    dense, _ = job.parameters()
    rows = job.client.pull([(0, np.arange(NUM_IDS))], training=False).rows[0]
    ours = np.concatenate([rows.ravel(), dense])
    return ours, nn.utils.parameters_to_vector(plain.parameters()).detach().numpy()


def vector_to(plain, job):
    rows = job.client.pull([(0, np.arange(NUM_IDS))], training=True).rows[0]
    values = np.concatenate([rows.ravel(), job.parameters()[0]])
    nn.utils.vector_to_parameters(torch.from_numpy(values), plain.parameters())


@pytest.mark.parametrize("name", WAYS)
def test_updates_are_those_of_a_plain_loop(name, new_torch_job):
    ours, expected = run_both(WAYS[name], new_torch_job)
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_the_limits_of_these_tests_are_exceeded(new_torch_job):
    clipped, _ = run_both(WAYS["norm"], new_torch_job)
    free, _ = run_both(sgd, new_torch_job)
    assert np.abs(clipped - free).max() > 0.1


REFUSED = {
    "a scheduler": (
        lambda p: clip_grad_norm(torch.optim.lr_scheduler.StepLR(sgd(p), 3), 1.0),
        "found StepLR; a scheduler goes around",
    ),
    "no limit": (lambda p: clip_grad_value(sgd(p), 0), "clip_value above 0, found 0"),
    "infinity": (
        lambda p: clip_grad_norm(sgd(p), float("inf")),
        "a finite max_norm above 0, found inf",
    ),
    "two limits": (
        lambda p: clip_grad_value(clip_grad_norm(sgd(p), 1.0), 1.0),
        "clips already; expected one limit",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_clipping_is_refused(name, new_torch_job):
    optimizer, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        new_torch_job(make_columns(), 20, model=Net, feed=feed, loss=loss, optimizer=optimizer)


def test_hooks_of_the_users_own_are_refused_and_told_what_clips(new_torch_job):
    def optimizer(parameters):
        made = sgd(parameters)
        made.register_step_pre_hook(lambda *_: nn.utils.clip_grad_norm_(parameters, 1.0))
        return made

    with pytest.raises(ModelError, match=r"has hooks .* elasticdl.optimizers.torch.clip_grad_norm"):
        new_torch_job(make_columns(), 20, model=Net, feed=feed, loss=loss, optimizer=optimizer)
