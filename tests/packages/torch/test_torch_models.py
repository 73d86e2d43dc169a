"""Models as users of PyTorch write them train as in PyTorch's own loop, or are refused."""

import dataclasses
import functools

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl.errors import ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch import nn  # noqa: E402  # after the skip
from torch.nn import functional as F  # noqa: E402  # as above
from torch.utils.checkpoint import checkpoint  # noqa: E402  # as above

from elasticdl.layers.torch import Embedding  # noqa: E402  # as above

pytestmark = pytest.mark.torch

WIDTH, WORDS, LENGTH = 12, 20, 6


def make_columns(count=48, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(count, WIDTH)).astype(np.float32),
        "words": rng.integers(WORDS, size=(count, LENGTH)),
        "y": rng.integers(2, size=count),
    }


def feed(dataset, mode, metadata):
    features = {"x": dataset.columns["x"], "words": dataset.columns["words"]}
    return features if mode == Mode.PREDICTION else (features, dataset.columns["y"])


def loss(labels, predictions):
    return F.cross_entropy(predictions, labels, label_smoothing=0.1)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.places = nn.Parameter(torch.zeros(LENGTH, 8))
        block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 2)
        self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, features):
        vectors = self.words(features["words"]) + self.places
        return self.out(self.norm(self.blocks(vectors)).mean(1))


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(),
            nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8, 2),
        )  # fmt: skip

    def forward(self, features):
        return self.layers(features["x"])


class Recurrent(nn.Module):
    """Its weights move to other memory with each call, as `flatten_parameters` does on a GPU."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 4)
        self.lstm = nn.LSTM(4, 6, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.out = nn.Linear(12, 2)

    def forward(self, features):
        for weight in self.lstm.parameters():
            weight.data = weight.data.clone()
        return self.out(self.lstm(self.words(features["words"]))[0][:, -1])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class FrozenAndTied(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.backbone.requires_grad_(False)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.out = nn.Linear(8, 2)
        self.register_buffer("mask", torch.arange(8) < 7)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, features):
        hidden = self.second(torch.relu(self.first(self.backbone(features["x"]))))
        return self.out(Square.apply(hidden.masked_fill(~self.mask, 0.0)))


class Normalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 8))
        with pytest.warns(FutureWarning, match="weight_norm"):
            self.out = nn.utils.weight_norm(nn.Linear(8, 2))  # which cannot be copied

    def forward(self, features):
        return self.out(torch.tanh(self.hidden(features["x"])))


class OfDerivatives(nn.Module):
    """Has the derivative of one net, with respect to its input, among its outputs."""

    def __init__(self):
        super().__init__()
        self.field, self.out = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 2)

    def forward(self, features):
        x = features["x"].requires_grad_()
        with torch.enable_grad():
            field = torch.tanh(self.field(x)).sum()
            (slope,) = torch.autograd.grad(field, x, create_graph=True)
        return self.out(x + slope)


class DeepAndFrozen(nn.Module):
    """Has a backbone that is not trained, of which other weights would overflow."""

    def __init__(self):
        super().__init__()
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(60)]
        self.backbone = nn.Sequential(*layers).requires_grad_(False)
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, features):
        x = features["x"]
        return torch.sigmoid(self.out(x + self.backbone(x)))[:, 0]


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(()))

    def forward(self, predictions, labels):
        self.centre.mul_(0.9).add_(predictions.detach().mean(), alpha=0.1)
        return F.mse_loss(predictions - self.centre, labels.float())


def test_a_frozen_backbone_is_tried_out_with_its_own_weights(new_torch_job):
    def between(labels, predictions):
        return nn.BCELoss()(predictions, labels.float())  # which refuses NaN

    for criterion in (between, Centred()):
        job = new_torch_job(
            make_columns(), 16, model=DeepAndFrozen, feed=feed, optimizer=warming, loss=criterion
        )
        assert np.isfinite(job.train(make_columns(), 16)).all()
    assert [v.name for v in job.description.state] == ["loss.centre"]


def warming(parameters):
    # Adam would make steps of the rounding errors of gradients that are 0: those of biases before
    # a batch norm, and of the keys' biases in attention.
    parameters = [p for p in parameters if p.requires_grad]
    made = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)
    return torch.optim.lr_scheduler.LambdaLR(made, lambda step: min(1.0, (step + 1) / 4))


@pytest.mark.parametrize(
    "model", [Transformer, Convolutional, Recurrent, FrozenAndTied, Normalized, OfDerivatives]
)
def test_a_model_trains_as_in_a_plain_loop(model, new_torch_job):
    columns = make_columns()
    job = new_torch_job(columns, 16, model=model, feed=feed, loss=loss, optimizer=warming)
    plain = model().train()
    take_values(job, plain)
    scheduler = warming(list(plain.parameters()))
    for epoch in range(2):
        for minibatch in job.minibatches(columns, 16, seed=epoch):
            torch.manual_seed(minibatch.seed)
            expected = loss(minibatch.labels, plain(minibatch.features))
            scheduler.optimizer.zero_grad()
            expected.backward()
            scheduler.optimizer.step()
            scheduler.step()
            assert job.step(minibatch).loss == pytest.approx(expected.item(), rel=1e-4)

    for name, value in values_of(job).items():
        expected = dict(plain.named_parameters())[name].detach()
        np.testing.assert_allclose(value, expected, rtol=1e-3, atol=1e-4)


def values_of(job):
    """Return the parameters that the store has, by name."""
    dense, _ = job.parameters()
    return {
        v.name: torch.from_numpy(dense[v.offset : v.offset + int(np.prod(v.shape))].copy()).reshape(
            v.shape
        )
        for v in job.description.dense
    }


def take_values(job, plain):
    values = values_of(job)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(values[name])


class Lists(nn.Module):
    """Takes a list, and returns one."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, features):
        x, words = features
        return [self.out(x), {"words": words}]


def test_a_model_and_a_loss_may_take_their_dicts_apart(new_torch_job):
    class Taking(Plain):
        def forward(self, features):
            return super().forward({"x": features.pop("x")})

    def taking(labels, predictions):
        return loss(labels.pop("y"), predictions)

    def feed_dict(dataset, mode, metadata):
        features, labels = feed(dataset, mode, metadata)
        return features, {"y": labels}

    def losses_of(**functions):
        columns = make_columns()
        functions |= {"optimizer": warming}
        return new_torch_job(columns, 16, **functions).train(columns, 16)

    found = losses_of(model=Taking, feed=feed_dict, loss=taking)
    assert found == losses_of(model=Plain, feed=feed, loss=loss)


def test_features_and_predictions_may_be_lists(new_torch_job):
    def examples(dataset, mode, metadata):
        columns = dataset.columns
        for x, words, y in zip(columns["x"], columns["words"], columns["y"], strict=True):
            yield [x, words] if mode == Mode.PREDICTION else ([x, words], y)

    columns = make_columns()
    job = new_torch_job(
        columns, 16, model=Lists, feed=examples,
        loss=lambda labels, predictions: loss(labels, predictions[0]),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        eval_metrics_fn=lambda: {"right": lambda y, p: p[0].argmax(1) == y},
    )  # fmt: skip
    job.train(columns, 16)
    metrics = job.evaluate(columns, 16)
    (minibatch,) = job.backend.minibatches(iter_records(columns), Mode.PREDICTION, 48, 0)
    given = job.given(minibatch, training=False)
    scores, others = job.backend.predict_step(minibatch, given.rows, given.dense, given.state)

    assert metrics["right"] == pytest.approx(np.mean(scores.argmax(1) == columns["y"]))
    np.testing.assert_array_equal(others["words"], columns["words"])


def iter_records(columns):
    from elasticdl.data.base import Records

    return iter([Records(0, columns=columns)])


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(WIDTH, 2)

    def forward(self, features):
        return self.out(features["x"])


def trained(new_torch_job, **functions):
    columns = make_columns()
    functions = {
        "model": Plain, "feed": feed, "loss": loss,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.1), **functions,
    }  # fmt: skip
    job = new_torch_job(columns, 16, **functions)
    return job.train(columns, 16)


def test_a_loss_of_pytorch_with_settings_is_called_in_its_own_order(new_torch_job):
    weight = torch.tensor([1.0, 3.0])
    losses = [
        trained(new_torch_job, loss=function)
        for function in (
            lambda labels, predictions: F.cross_entropy(predictions, labels, weight),
            functools.partial(F.cross_entropy, weight=weight),
            nn.CrossEntropyLoss(weight),
        )
    ]
    assert losses[0] == losses[1] == losses[2]
    one_hot = {
        "feed": lambda *a: (a[0].columns["x"], np.eye(2, dtype=np.float32)[a[0].columns["y"]])
    }
    ours = functools.partial(F.binary_cross_entropy_with_logits, pos_weight=torch.tensor(2.0))
    expected = [
        trained(new_torch_job, model=lambda: nn.Linear(WIDTH, 2), loss=function, **one_hot)
        for function in (ours, lambda labels, predictions: ours(predictions, labels))
    ]
    assert expected[0] == expected[1]


def test_the_weights_of_a_loss_are_where_the_model_is_computed():
    from elasticdl.packages.torch.device import Device
    from elasticdl.packages.torch.loss import MinibatchLoss

    module = nn.CrossEntropyLoss(torch.ones(2))
    elsewhere = Device("meta")
    for function in (module, functools.partial(F.cross_entropy, weight=torch.ones(2))):
        moved = MinibatchLoss(function, elsewhere)
        labels = torch.zeros(3, dtype=torch.int64, device="meta")
        found = moved.bare(labels, torch.zeros(3, 2, device="meta"))
        assert found.device.type == "meta"
    assert module.weight.device.type == "cpu"


class Clamping(Plain):
    def forward(self, features):
        with torch.no_grad():
            self.out.weight.clamp_(-0.01, 0.01)
        return super().forward(features)


class ClampingInTraining(Plain):
    def forward(self, features):
        if self.training:
            self.out.weight.data.clamp_(-0.01, 0.01)
        return super().forward(features)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, predictions, labels):
        return F.cross_entropy(predictions * self.scale, labels)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor


class Dataclass(Plain):
    def forward(self, features):
        return Output(super().forward(features))


class TwoArguments(nn.Module):
    def forward(self, x, words):
        return x


class Elsewhere(Plain):
    def forward(self, features):
        return super().forward(features) + torch.ones(2, device="meta")


def traced():
    with pytest.warns(FutureWarning, match="torch.jit"):
        return torch.jit.trace(nn.Linear(WIDTH, 2), torch.ones(1, WIDTH))


class WithRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = Embedding(WORDS, 2), nn.Linear(2 * LENGTH, 2)

    def forward(self, features):
        return self.out(self.words(features["words"]).flatten(1))


class OfOneRecord(Plain):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, features):
        return super().forward({"x": self.norm(features["x"][:1])})


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = Embedding(WORDS, 2), nn.Linear(2 * LENGTH, 2)

    def forward(self, features):
        return checkpoint(self.scores, features["words"], use_reentrant=False)

    def scores(self, words):
        return self.out(torch.tanh(self.words(words)).flatten(1))


class WithoutBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("not written yet")


class NoBackward(Plain):
    def forward(self, features):
        return WithoutBackward.apply(super().forward(features))


class WithoutGrad(Plain):
    def forward(self, features):
        x = features["x"].detach().requires_grad_()
        (slope,) = torch.autograd.grad(super().forward({"x": x}).sum(), x)
        return super().forward({"x": slope})


def doubles(dataset, mode, metadata):
    return {"x": dataset.columns["x"].astype(np.float64)}, dataset.columns["y"]


def cyclic(parameters):
    made = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return torch.optim.lr_scheduler.OneCycleLR(made, 0.1, total_steps=10)


class Unfreezing(Plain):
    """Trains its layer from the fourth step on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, features):
        self.steps += self.training
        self.out.requires_grad_(bool(self.steps > 3))
        return super().forward(features)


class Replacing(Plain):
    def forward(self, features):
        self.out.weight = nn.Parameter(self.out.weight.detach() / 2)
        return super().forward(features)


class Sharing(Plain):
    """Has two parameters on the same numbers."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(self.out.in_features, self.out.out_features)
        self.other.weight.data = self.out.weight.data

    def forward(self, features):
        return super().forward(features) + self.other(features["x"])


REFUSED = {
    "shares": ({"model": Sharing}, "'out.weight' and 'other.weight' have memory in common"),
    "unfreezes": ({"model": Unfreezing}, "sets requires_grad of parameter 'out.weight' to False"),
    "replaces": ({"model": Replacing}, "the model replaces parameter 'out.weight'"),
    "clamps": ({"model": Clamping}, "changes its parameter 'out.weight' when it is called"),
    "clamps in training": ({"model": ClampingInTraining}, "changes its parameter 'out.weight'"),
    "trained loss": ({"loss": Scaled()}, "Scaled, has the parameter 'scale', which the job"),
    "dataclass": (
        {"model": Dataclass, "loss": lambda y, p: loss(y, p.logits)},
        "the model returns Output; expected tensors",
    ),
    "elsewhere": ({"model": Elsewhere}, "constants in __init__ by register_buffer"),
    "torch.jit": (
        {"model": traced},
        "is one of torch.jit, whose parameters",
    ),
    "torch.compile": (
        {"model": lambda: nn.Sequential(torch.compile(WithRows()))},
        "0: torch.compile was called on a module with tables.*--torch_compile compiles its steps",
    ),
    "one record": (
        {"model": OfOneRecord},
        "one record, which has no variance.* choose another --minibatch_size",
    ),
    "arguments": ({"model": TwoArguments}, "forward is given one argument, all that feed"),
    "checkpoint": ({"model": Checkpointed}, "not in what torch.utils.checkpoint computes again"),
    "backward": ({"model": NoBackward}, r"loss.backward\(\) raised ValueError: not written"),
    "derivative": (
        {"model": WithoutGrad},
        r"evaluations have no gradients: compute those of forward in torch\.enable_grad",
    ),
    "double": ({"feed": doubles}, r'parameters are float32: .astype\("float32"\) in feed'),
    "momentum": ({"optimizer": cyclic}, "OneCycleLR changes momentum .* cycle_momentum=False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_train_otherwise_than_in_pytorch_is_refused_before_training(name, new_torch_job):
    functions = {
        "model": Plain, "feed": feed, "loss": loss,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.1), **REFUSED[name][0],
    }  # fmt: skip
    with pytest.raises(ModelError, match=REFUSED[name][1]):
        new_torch_job(make_columns(), 16, **functions)


@pytest.mark.parametrize("rates", [[0.1], [0.1, 0.01]], ids=["one rate", "two rates"])
def test_a_scheduler_of_one_cycle_changes_the_rate_alone_and_ends_with_its_steps(
    rates, new_torch_job
):
    def optimizer(parameters):
        groups = [{"params": parameters[k :: len(rates)]} for k in range(len(rates))]
        made = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        return torch.optim.lr_scheduler.OneCycleLR(made, rates, total_steps=5, cycle_momentum=False)

    columns = make_columns()
    job = new_torch_job(columns, 16, model=Plain, feed=feed, loss=loss, optimizer=optimizer)
    expected = optimizer([nn.Parameter(torch.ones(1)) for _ in rates])
    expected.optimizer.step()
    for version in range(5):
        assert job.backend.learning_rate(version) == expected.get_last_lr()[0]
        expected.step()
    with pytest.raises(ModelError, match="OneCycleLR raised ValueError at update 6 of the model"):
        job.backend.learning_rate(6)


def test_a_scheduler_tells_that_it_counts_updates(new_torch_job):
    def optimizer(parameters):
        return torch.optim.lr_scheduler.StepLR(torch.optim.SGD(parameters, lr=0.1), 3)

    job = new_torch_job(make_columns(), 16, model=Plain, feed=feed, loss=loss, optimizer=optimizer)
    (note,) = job.backend._spec.notes
    assert "StepLR counts updates of the model" in note


def test_weights_of_samples_go_with_the_labels(new_torch_job):
    columns = make_columns()
    columns["weight"] = np.random.default_rng(5).random(48).astype(np.float32)

    def weighted(labels, predictions):
        each = F.cross_entropy(predictions, labels["y"], reduction="none")
        return (each * labels["weight"]).mean()

    def feed(dataset, mode, metadata):
        labels = {"y": dataset.columns["y"], "weight": dataset.columns["weight"]}
        return {"x": dataset.columns["x"]}, labels

    job = new_torch_job(
        columns, 16, model=Plain, feed=feed, loss=weighted,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )  # fmt: skip
    plain = Plain()
    take_values(job, plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for minibatch in job.minibatches(columns, 16):
        optimizer.zero_grad()
        weighted(minibatch.labels, plain(minibatch.features)).backward()
        optimizer.step()
        job.step(minibatch)
    for name, value in values_of(job).items():
        np.testing.assert_allclose(value, dict(plain.named_parameters())[name].detach(), rtol=1e-5)
