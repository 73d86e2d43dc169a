"""`--worker_devices` in PyTorch: what is there, and steps on a GPU where the machine has one."""

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl.errors import ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch import nn  # noqa: E402  # after the skip
from torch.nn import functional as F  # noqa: E402  # as above

from elasticdl.data.base import Metadata  # noqa: E402  # as above
from elasticdl.layers.torch import Embedding, EmbeddingBag  # noqa: E402  # as above
from elasticdl.optimizers.torch import clip_grad_norm  # noqa: E402  # as above
from elasticdl.packages.frameworks.lookup import looking_up  # noqa: E402  # as above
from elasticdl.packages.torch.device import Device, open_device  # noqa: E402  # as above
from elasticdl.packages.torch.model import PlacedModel  # noqa: E402  # as above
from elasticdl.packages.torch.trainer import TorchTrainer  # noqa: E402  # as above

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="PyTorch finds no GPU on this machine"
)


def make_columns(count=100, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(40, size=(count, 3)),
        "x": rng.normal(size=(count, 5)).astype(np.float32),
        "y": rng.integers(2, size=(count, 1)).astype(np.float32),
    }


class Net(nn.Module):
    """Two tables, batch norm, a buffer that never changes."""

    def __init__(self):
        super().__init__()
        self.vectors, self.bags = Embedding(40, 4), EmbeddingBag(40, 2, mode="sum")
        self.norm = nn.BatchNorm1d(5)
        self.out = nn.Linear(19, 1)
        self.register_buffer("scale", torch.ones(1, dtype=torch.float64))

    def forward(self, features):
        rows = self.vectors(features["ids"]).flatten(1)
        bags = self.bags(features["ids"])
        return self.out(torch.cat([rows, bags, self.norm(features["x"])], 1)) * self.scale.float()


def functions(model=Net):
    def feed(dataset, mode, metadata):
        features = {"ids": dataset.columns["ids"], "x": dataset.columns["x"]}
        return features if mode == Mode.PREDICTION else (features, dataset.columns["y"])

    return {
        "model": model,
        "feed": feed,
        "loss": lambda labels, predictions: F.binary_cross_entropy_with_logits(predictions, labels),
        "optimizer": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        "eval_metrics_fn": lambda: {"error": lambda labels, predictions: labels - predictions},
    }


def test_a_device_that_is_not_there_is_refused_with_what_there_is():
    assert open_device("cpu").is_cpu
    with pytest.raises(ModelError, match=r"expected cuda:99 on the machine .* finds .*cpu"):
        open_device("cuda:99")


def test_a_worker_refuses_it_before_training(new_torch_job):
    with pytest.raises(ModelError, match="expected cuda:99"):
        new_torch_job(make_columns(), 32, device="cuda:99", **functions())


def test_a_model_that_has_moved_has_its_values():
    with looking_up(lambda layer, ids: None):
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    placed = PlacedModel(model)
    dense, state = placed.dense_values(), placed.state_values()
    parameters = [p for _, p in placed.parameters]

    placed.move(Device())
    placed.load(dense + 1, state)

    assert [p for _, p in placed.parameters] == parameters  # what an optimizer was given
    np.testing.assert_array_equal(placed.dense_values(), dense + 1)
    np.testing.assert_array_equal(model[0].weight.detach().numpy().ravel(), dense[:6] + 1)


class Elsewhere(Device):
    """The CPU, used as if copies were needed: what a GPU reads late is then checked late."""

    is_cpu = False

    def _sent(self, tensor):
        return tensor.clone()

    def array(self, tensor):
        return tensor.detach().clone().contiguous().numpy()

    def seed(self, seed):
        torch.default_generator.manual_seed(seed)


def steps_of(begin, spec_of, device, columns, model=Net):
    torch.manual_seed(0)
    with looking_up(lambda layer, ids: None):
        built = model()
    trainer = TorchTrainer(spec_of(**functions()), built, Metadata(), 0, device=device)
    return begin(trainer, columns)


def test_steps_whose_copies_are_elsewhere_are_those_of_the_cpu(spec_of, begin_job):
    columns = make_columns()
    jobs = [steps_of(begin_job, spec_of, device, columns) for device in (Device(), Elsewhere())]
    for job in jobs:
        job.train(columns, 32)
    assert jobs[0].losses == jobs[1].losses
    assert jobs[0].evaluate(columns, 50) == jobs[1].evaluate(columns, 50)
    np.testing.assert_array_equal(*(job.predict(columns, 50) for job in jobs))


def test_other_ids_than_those_that_were_pulled_are_found_after_the_step(spec_of, begin_job):
    class Wandering(Net):
        def forward(self, features):
            moved = (features["ids"] + 1) % 40 if self.training else features["ids"]
            return super().forward(features | {"ids": moved})

    columns = make_columns()
    job = steps_of(begin_job, spec_of, Elsewhere(), columns, Wandering)
    with pytest.raises(ModelError, match="looks up other ids in table 'vectors'"):
        job.train(columns, 32)


@needs_gpu
def test_a_gpu_trains_as_the_cpu_does(new_torch_job, tmp_path):
    columns = make_columns()
    jobs = [new_torch_job(columns, 32, device=name, **functions()) for name in ("cpu", "cuda:0")]
    for job in jobs:
        for epoch in range(3):
            job.train(columns, 32, seed=epoch)
    ours, theirs = jobs[1], jobs[0]
    assert {p.device.type for p in ours.backend._placed.model.parameters()} >= {"cuda"}
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=1e-3)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)
    np.testing.assert_allclose(
        ours.predict(columns, 32), theirs.predict(columns, 32), rtol=1e-2, atol=1e-3
    )
    ours.export(tmp_path)
    assert (tmp_path / "model.pt2").is_file()
    assert ours.train(columns, 32)[-1] < 1.0  # the model is on the GPU again


@needs_gpu
def test_a_compiled_step_on_a_gpu_has_the_losses_of_the_cpu(new_torch_job):
    columns = make_columns()
    plain = new_torch_job(columns, 32, **functions())
    compiled = new_torch_job(columns, 32, device="cuda:0", torch_compile=True, **functions())
    np.testing.assert_allclose(compiled.train(columns, 32), plain.train(columns, 32), rtol=1e-3)


class Recurrent(nn.Module):
    """Its weights go to other memory with each call on a GPU; features come in a list."""

    def __init__(self):
        super().__init__()
        self.words, self.lstm = Embedding(40, 4), nn.LSTM(4, 6, batch_first=True)
        self.out = nn.Linear(11, 2)

    def forward(self, features):
        ids, x = features
        self.lstm.flatten_parameters()
        return self.out(torch.cat([self.lstm(self.words(ids))[0][:, -1], x], 1))


def of_lists():
    def feed(dataset, mode, metadata):
        features = [dataset.columns["ids"], dataset.columns["x"]]
        return (features, dataset.columns["y"][:, 0].astype(np.int64))

    return {
        "model": Recurrent,
        "feed": feed,
        "loss": nn.CrossEntropyLoss(torch.tensor([1.0, 3.0])),
        "optimizer": lambda parameters: clip_grad_norm(torch.optim.SGD(parameters, lr=0.1), 1.0),
        "eval_metrics_fn": lambda: {"right": lambda labels, p: p.argmax(1) == labels},
    }


def train_both(new_torch_job, columns, device):
    jobs = [new_torch_job(columns, 32, device=name, **of_lists()) for name in ("cpu", device)]
    for job in jobs:
        for epoch in range(3):
            job.train(columns, 32, seed=epoch)
    np.testing.assert_allclose(jobs[1].losses, jobs[0].losses, rtol=1e-2)
    np.testing.assert_allclose(jobs[1].parameters()[0], jobs[0].parameters()[0], atol=1e-2)
    assert jobs[1].evaluate(columns, 50).keys() == {"right", "loss"}
    assert jobs[0].losses[-1] != jobs[0].losses[0]


def test_lists_weights_of_a_loss_and_an_lstm_train_alike_twice(new_torch_job):
    train_both(new_torch_job, make_columns(), "cpu")


@needs_gpu
def test_lists_weights_of_a_loss_and_an_lstm_are_where_a_gpu_needs_them(new_torch_job):
    train_both(new_torch_job, make_columns(), "cuda:0")
