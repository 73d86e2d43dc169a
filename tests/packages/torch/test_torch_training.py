"""A PyTorch model trained through the seam and the store is that of PyTorch's own loop."""

import types

import numpy as np
import pytest

from elasticdl.errors import DataError, ModelError
from elasticdl.optimizers import UpdateRule

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch import nn  # noqa: E402  # after the skip
from torch.nn import functional as F  # noqa: E402  # as above

from elasticdl.layers.torch import Embedding  # noqa: E402  # as above
from tests.packages.torch.plain_model import (  # noqa: E402  # as above
    DIM,
    FIELDS,
    NUM_IDS,
    Net,
    feed,
    loss,
    make_columns,
)

pytestmark = pytest.mark.torch


def adagrad(weight, gradient, slots, step, learning_rate):
    """What PyTorch's Adagrad does, as a rule of one's own."""
    total = slots["sum"] + gradient * gradient
    return weight - learning_rate * gradient / (np.sqrt(total) + 1e-10), {"sum": total}


# Of those with momentum, a row that a minibatch lacks moves in PyTorch's dense table and not here:
# the sparse ones are compared on all, the others where each minibatch has each id.
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.05, amsgrad=True),
    "decoupled Adam": lambda p: torch.optim.Adam(
        p, lr=0.01, weight_decay=0.05, decoupled_weight_decay=True
    ),
    "AdamW of groups": lambda p: torch.optim.AdamW(
        [
            {"params": [q for q in p if q.dim() > 1]},
            {"params": [q for q in p if q.dim() == 1], "weight_decay": 0.0},
        ],
        lr=0.01,
        weight_decay=0.5,
    ),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "momentum": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "schedule": lambda p: torch.optim.lr_scheduler.StepLR(
        torch.optim.SGD(p, lr=0.2), step_size=3, gamma=0.5
    ),
    "schedule of an average": lambda p: torch.optim.swa_utils.SWALR(
        torch.optim.SGD(p, lr=0.2), swa_lr=0.05, anneal_epochs=3
    ),
    "a rule of one's own": lambda p: UpdateRule(adagrad, {"sum": 0.1}, learning_rate=0.1),
}
PLAIN = OPTIMIZERS | {"a rule of one's own": OPTIMIZERS["Adagrad"]}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_that_of_a_plain_loop_in_pytorch(name, new_torch_job):
    columns = make_columns()
    columns["ids"] = np.arange(64 * FIELDS).reshape(64, FIELDS) % 16  # in each half all of them
    job = new_torch_job(columns, 32, model=Net, feed=feed, loss=loss, optimizer=OPTIMIZERS[name])

    plain = Net(nn.Embedding)
    values = dict(zip([v.name for v in job.description.dense], _cut(job), strict=True))
    plain.load_state_dict(values, strict=False)
    with torch.no_grad():
        rows = job.client.pull([(0, np.arange(NUM_IDS))], training=True).rows[0]
        plain.vectors.weight.copy_(torch.from_numpy(rows))
    made = PLAIN[name](list(plain.parameters()))
    optimizer = getattr(made, "optimizer", made)
    for epoch in range(4):
        for minibatch in job.minibatches(columns, 32, seed=epoch):
            expected = loss(minibatch.labels, plain(minibatch.features))
            optimizer.zero_grad()
            expected.backward()
            optimizer.step()
            if made is not optimizer:
                made.step()
            result = job.step(minibatch)
            assert result.loss == pytest.approx(expected.item(), rel=2e-4)

    _, state = job.parameters()
    ours = dict(zip([v.name for v in job.description.dense], _cut(job), strict=True))
    for key, value in ours.items():
        np.testing.assert_allclose(value, plain.state_dict()[key], rtol=1e-3, atol=2e-5)
    assert [v.name for v in job.description.state] == [
        "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
    ]  # fmt: skip
    statistics = plain.norm
    expected = [*statistics.running_mean.tolist(), *statistics.running_var.tolist(), 8.0]
    np.testing.assert_allclose(state, expected, rtol=1e-4, atol=1e-6)
    used = np.unique(columns["ids"])
    rows = job.client.pull([(0, used)], training=False).rows[0]
    np.testing.assert_allclose(rows, plain.vectors.weight.detach()[used], rtol=1e-3, atol=2e-5)


def _cut(job):
    dense, _ = job.parameters()
    for variable in job.description.dense:
        size = int(np.prod(variable.shape))
        part = dense[variable.offset : variable.offset + size]
        yield torch.from_numpy(part.copy()).reshape(variable.shape)


def test_rows_of_length_one_are_tried_out(new_torch_job):
    class Normed(Net):
        def forward(self, features):
            rows = self.vectors(features["ids"])
            rows = (rows / rows.norm(dim=-1, keepdim=True)).flatten(1)
            hidden = torch.relu(self.hidden(torch.cat([rows, features["x"]], 1)))
            return torch.sigmoid(self.out(hidden))

    job = new_torch_job(
        make_columns(), 32, model=Normed, feed=feed, optimizer=OPTIMIZERS["SGD"],
        loss=lambda labels, predictions: F.binary_cross_entropy(predictions, labels),
    )  # fmt: skip
    assert np.isfinite(job.train(make_columns(), 32)).all()


def test_tensors_may_be_made_on_the_device_of_a_table(new_torch_job):
    class Placed(Net):
        """Knows the place of each id, as a transformer does."""

        def __init__(self):
            super().__init__()
            self.places = nn.Embedding(FIELDS, DIM)

        def forward(self, features):
            rows = self.vectors(features["ids"])
            places = torch.arange(FIELDS, device=self.device_of(features))
            rows = (rows + self.places(places)).flatten(1)
            return self.out(torch.relu(self.hidden(torch.cat([rows, features["x"]], 1))))

        def device_of(self, features):
            return features["x"].device

    class OfATable(Placed):
        def device_of(self, features):
            assert not self.vectors.weight.is_cuda
            return self.vectors.weight.device

    def losses_of(model):
        job = new_torch_job(
            make_columns(), 32, model=model, feed=feed, loss=loss, optimizer=OPTIMIZERS["SGD"]
        )
        return job.train(make_columns(), 32)

    assert losses_of(OfATable) == losses_of(Placed)


def test_what_is_looked_up_may_be_changed_in_place(new_torch_job):
    class Halved(Net):
        def forward(self, features):
            rows = self.vectors(features["ids"])
            rows = self.halved(rows).flatten(1)
            return self.out(torch.relu(self.hidden(torch.cat([rows, features["x"]], 1))))

        def halved(self, rows):
            return rows / 2

    class InPlace(Halved):
        def halved(self, rows):
            rows /= 2
            return rows

    class InTraining(InPlace):
        def halved(self, rows):
            return super().halved(rows) if self.training else rows / 2

    def job_of(model):
        columns = make_columns()
        job = new_torch_job(
            columns, 32, model=model, feed=feed, loss=loss,
            optimizer=lambda p: torch.optim.Adam(p, lr=0.1),
        )  # fmt: skip
        job.train(columns, 32)
        rows = job.client.pull([(0, np.arange(9))], training=False).rows[0]
        return job.losses, job.evaluate(columns, 32), rows

    for ours, theirs in zip(job_of(InPlace), job_of(Halved), strict=True):
        np.testing.assert_equal(ours, theirs)
    with pytest.raises(
        ModelError, match=r"changes in place what it has looked up: x = x \+ \.\.\."
    ):
        job_of(InTraining)


def test_what_is_looked_up_without_a_gradient_is_not_trained(new_torch_job):
    class Without(Net):
        def forward(self, features):
            with torch.no_grad():
                rows = self.vectors(features["ids"])
            both = torch.cat([rows.flatten(1), features["x"]], 1)
            return self.out(torch.relu(self.hidden(both)))

    job = new_torch_job(
        make_columns(), 32, model=Without, feed=feed, loss=loss, optimizer=OPTIMIZERS["SGD"]
    )
    [minibatch] = job.minibatches(make_columns(), 64)
    before = job.given(minibatch, training=True).rows[0]
    job.train(make_columns(), 32)
    np.testing.assert_array_equal(job.given(minibatch, training=True).rows[0], before)


def test_random_numbers_of_a_step_are_a_function_of_task_and_minibatch(new_torch_job):
    columns = make_columns()
    job = new_torch_job(
        columns, 16, model=lambda: Net(dropout=0.5), feed=feed, loss=loss,
        optimizer=OPTIMIZERS["SGD"],
    )  # fmt: skip
    first, second = [list(job.minibatches(columns, 16, seed=5)) for _ in range(2)]

    losses = [[job.computed(m)[2].loss for m in part] for part in (first, reversed(second))]

    assert losses[0] == losses[1][::-1]
    assert len(set(losses[0])) == len(losses[0])


def test_an_evaluation_and_predictions_are_those_of_the_model_in_eval_mode(new_torch_job):
    columns = make_columns()
    functions = {
        "model": lambda: Net(dropout=0.5), "feed": feed, "loss": loss,
        "optimizer": OPTIMIZERS["Adagrad"],
        "eval_metrics_fn": lambda: {
            "each": lambda labels, predictions: (predictions > 0) == (labels > 0),
            "whole": lambda labels, predictions: F.mse_loss(predictions, labels),
            "by its names": lambda y_hat, target: target,
            "of PyTorch": F.binary_cross_entropy_with_logits,
            "a module of PyTorch": nn.BCEWithLogitsLoss(reduction="none"),
            "a class of PyTorch": nn.BCEWithLogitsLoss,
        },
    }  # fmt: skip
    job = new_torch_job(columns, 32, **functions)
    job.train(columns, 32)

    metrics = job.evaluate(columns, 20)
    predicted = job.predict(columns, 20)

    assert metrics["each"] == pytest.approx(np.mean((predicted > 0) == (columns["y"] > 0)))
    assert metrics["whole"] == pytest.approx(np.mean((predicted - columns["y"]) ** 2), rel=1e-5)
    assert metrics["by its names"] == pytest.approx(np.mean(columns["y"]))
    both = map(torch.from_numpy, (predicted, columns["y"]))
    expected = pytest.approx(float(F.binary_cross_entropy_with_logits(*both)), rel=1e-5)
    assert metrics["of PyTorch"] == expected
    assert metrics["a module of PyTorch"] == expected
    assert metrics["a class of PyTorch"] == expected
    np.testing.assert_array_equal(predicted, job.predict(columns, 64))


def test_outputs_beside_the_predictions_change_no_metric(new_torch_job):
    class Beside(Net):
        def forward(self, features):
            out = super().forward(features)
            return {"in training": out.mean() if self.training else None, "score": out}

    class Before(Net):
        def forward(self, features):
            out = super().forward(features)
            return out.mean(), out

    def whole(labels, predictions):
        return F.mse_loss(predictions, labels)

    def job_of(model, part):
        return new_torch_job(
            make_columns(), 32, model=model, feed=feed, optimizer=OPTIMIZERS["SGD"],
            loss=lambda labels, predictions: loss(labels, predictions[part]),
            eval_metrics_fn=lambda: {"whole": lambda y, predictions: whole(y, predictions[part])},
        )  # fmt: skip

    columns = make_columns()
    for job in (job_of(Beside, "score"), job_of(Before, 1)):
        found = job.evaluate(columns, 60)["whole"]
        assert found == pytest.approx(job.evaluate(columns, 64)["whole"], rel=1e-5)
    [predicted] = job_of(Beside, "score").predictions(columns, 64)
    assert predicted.keys() == {"score"}


def test_weights_of_a_group_of_their_own_may_be_those_of_a_table(new_torch_job):
    def optimizer(parameters):
        tables = [p for p in parameters if p.shape[0] == NUM_IDS]
        others = [p for p in parameters if p.shape[0] != NUM_IDS]
        groups = [{"params": tables, "weight_decay": 0.0}, {"params": others}]
        return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)

    job = new_torch_job(make_columns(), 32, model=Net, feed=feed, loss=loss, optimizer=optimizer)

    assert job.description.tables[0].optimizer.params["weight_decay"] == 0.0
    assert job.description.optimizer.params["weight_decay"] == 0.1


def test_a_parameter_that_the_optimizer_is_not_given_stays(new_torch_job):
    def model():
        net = Net()
        net.hidden.weight.requires_grad_(False)
        return net

    columns = make_columns()
    job = new_torch_job(
        columns, 32, model=model, feed=feed, loss=loss,
        optimizer=lambda p: torch.optim.SGD([q for q in p if q.shape[0] != 1], lr=0.5),
    )  # fmt: skip
    before = list(_cut(job))
    job.train(columns, 32)
    after = list(_cut(job))

    names = [v.name for v in job.description.dense]
    stayed = [n for n, a, b in zip(names, before, after, strict=True) if torch.equal(a, b)]
    assert stayed == ["hidden.weight", "out.weight", "out.bias"]


def with_state(optimizer):
    """An optimizer that has what steps leave."""
    parameter = optimizer.param_groups[0]["params"][0]
    optimizer.state[parameter] = {"step": torch.tensor(9.0)}
    return optimizer


def with_own(optimizer, name):
    """An optimizer of which a method is another one."""
    plain = getattr(optimizer, name)
    setattr(optimizer, name, types.MethodType(lambda self, *args: plain(*args), optimizer))
    return optimizer


REFUSED_OPTIMIZERS = {
    "Muon|Adafactor": (
        lambda p: torch.optim.Adafactor(p),
        "Adafactor is not one that the ps replicas apply: it keeps sums",
    ),
    "maximize": (lambda p: torch.optim.SGD(p, lr=1, maximize=True), "maximize=True"),
    "rates": (
        lambda p: torch.optim.lr_scheduler.CosineAnnealingLR(
            torch.optim.SGD([{"params": p[:1], "lr": 1}, {"params": p[1:], "lr": 2}]),
            T_max=9,
            eta_min=0.5,
        ),
        "CosineAnnealingLR gives the parameter groups the learning rates .* proportions",
    ),
    "plateau": (
        lambda p: torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD(p, lr=1)),
        "ReduceLROnPlateau, which waits for evaluations.*elasticdl.callbacks.ReduceLROnPlateau",
    ),
    "foreign": (
        lambda p: torch.optim.SGD([*p, nn.Parameter(torch.ones(1))], lr=1),
        "1 parameters that are not among those of the model",
    ),
    "state": (lambda p: with_state(torch.optim.Adam(p)), "has state of 1 parameters"),
    "step": (lambda p: with_own(torch.optim.SGD(p, lr=1), "step"), r"step\(\) was set on the"),
    "step of a scheduler": (
        lambda p: torch.optim.lr_scheduler.StepLR(
            with_own(torch.optim.SGD(p, lr=1), "step"), step_size=1
        ),
        r"step\(\) was set on the",
    ),
    "zero_grad": (
        lambda p: with_own(torch.optim.SGD(p, lr=1), "zero_grad"),
        r"zero_grad\(\) was set on the optimizer SGD",
    ),
    "scheduler that is left out": (
        lambda p: torch.optim.lr_scheduler.StepLR(torch.optim.SGD(p, lr=1), 1).optimizer,
        "expected the scheduler in the place of the optimizer",
    ),
    "something else": (lambda p: "sgd", "found str"),
    "raises": (lambda p: p.no_such, "optimizer.parameters. raised AttributeError"),
}


@pytest.mark.parametrize("name", REFUSED_OPTIMIZERS)
def test_an_optimizer_that_the_store_does_not_apply_is_refused(name, new_torch_job):
    optimizer, message = REFUSED_OPTIMIZERS[name]
    with pytest.raises(ModelError, match=message):
        new_torch_job(make_columns(), 32, model=Net, feed=feed, loss=loss, optimizer=optimizer)


class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 1).double()

    def forward(self, features):
        return self.layer(features["x"].double())


class InPlace(Net):
    def forward(self, features):
        features["x"].mul_(2)
        return super().forward(features)


class Growing(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("sum", torch.ones(3))

    def forward(self, features):
        if self.training:
            self.sum *= 2
        return super().forward(features)


class Sparse(Net):
    def __init__(self):
        super().__init__(lambda *sizes: nn.Embedding(*sizes, sparse=True))


class Dropping(Net):
    def forward(self, features):
        if self.training:
            features = {**features, "ids": (features["ids"] + 1) % NUM_IDS}
        return super().forward(features)


REFUSED_MODELS = {
    Doubled: "'layer.weight' is torch.float64 on cpu",
    InPlace: "changes its input in place",
    Growing: "buffer 'sum' from the old one in a way that",
    Sparse: "sparse=True is dense here",
}


@pytest.mark.parametrize("model", REFUSED_MODELS)
def test_a_model_that_cannot_be_trained_is_refused_before_training(model, new_torch_job):
    with pytest.raises(ModelError, match=REFUSED_MODELS[model]):
        new_torch_job(
            make_columns(), 32, model=model, feed=feed, loss=loss,
            optimizer=OPTIMIZERS["SGD"],
        )  # fmt: skip


def test_other_ids_in_the_step_than_ahead_of_it_are_refused(new_torch_job):
    columns = make_columns()
    job = new_torch_job(
        columns, 32, model=Dropping, feed=feed, loss=loss, optimizer=OPTIMIZERS["SGD"]
    )
    with pytest.raises(ModelError, match="other ids in table 'vectors' in its step"):
        job.train(columns, 32)


LOSSES = {
    "of each example": (lambda y, p: (y - p) ** 2, r"float32\[32, 1\]; expected one number"),
    "without gradient": (lambda y, p: (y == p).float().mean(), "no gradient for any parameter"),
    "raises": (lambda y, p: F.cross_entropy(p, y.long()[:3]), "loss.labels, predictions. raised"),
    "a name": ("mse", "loss is 'mse': expected a function loss.labels, predictions"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_cannot_be_used_is_refused(name, new_torch_job):
    function, message = LOSSES[name]
    with pytest.raises(ModelError, match=message):
        new_torch_job(
            make_columns(), 32, model=Net, feed=feed, loss=function,
            optimizer=OPTIMIZERS["SGD"],
        )  # fmt: skip


def test_losses_of_pytorch_are_called_in_its_own_order(new_torch_job):
    columns = make_columns()
    losses = [
        new_torch_job(
            columns, 32, model=Net, feed=feed, loss=function, optimizer=OPTIMIZERS["SGD"]
        ).train(columns, 32)
        for function in (
            loss,
            nn.BCEWithLogitsLoss,
            nn.BCEWithLogitsLoss(),
            nn.BCEWithLogitsLoss().forward,
            F.binary_cross_entropy_with_logits,
        )
    ]
    assert all(found == losses[0] for found in losses)


def test_a_parameter_rests_with_minibatches_that_leave_it_without_a_gradient(new_torch_job):
    class Branches(Net):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(1, 1)

        def forward(self, features):
            out = super().forward(features)
            return self.other(out) if float(features["x"].sum()) > 1e6 else out

    columns = make_columns()
    job = new_torch_job(
        columns, 32, model=Branches, feed=feed, loss=loss,
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5),
    )  # fmt: skip
    named = [v.name for v in job.description.dense]
    before = dict(zip(named, _cut(job), strict=True))
    job.train(columns, 32)
    rested = dict(zip(named, _cut(job), strict=True))
    columns["x"][:] = 1e9
    job.train(columns, 64)
    after = dict(zip(named, _cut(job), strict=True))

    assert torch.equal(rested["other.bias"], before["other.bias"])
    moved = after["other.bias"] - rested["other.bias"] * (1 - 0.01 * 0.5)
    assert abs(moved.item()) == pytest.approx(0.01, rel=1e-3)  # as the first step of Adam is


class Staged(nn.Module):
    """The second table's ids are computed from rows of the first."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Embedding(NUM_IDS, 1), Embedding(NUM_IDS, 1)

    def forward(self, features):
        rows = self.first(features["ids"])
        ids = (rows.detach().abs().squeeze(-1) * 7).long() % NUM_IDS
        return (rows + self.second(ids)).sum(1)


def test_ids_that_depend_on_rows_need_to_be_looked_up_one_after_the_other(new_torch_job):
    columns = make_columns()
    functions = {"model": Staged, "feed": feed, "loss": loss, "optimizer": OPTIMIZERS["SGD"]}
    with pytest.raises(ModelError, match=r"table 'second' depend on rows .* --run_eagerly=true"):
        new_torch_job(columns, 32, **functions)

    job = new_torch_job(columns, 32, run_eagerly=True, **functions)
    job.train(columns, 32, seed=0)
    losses = job.train(columns, 32, seed=1)

    assert len(losses) == 4
    assert np.isfinite(losses).all()


def test_an_id_out_of_range_is_refused(new_torch_job):
    columns = make_columns()
    job = new_torch_job(columns, 32, model=Net, feed=feed, loss=loss, optimizer=OPTIMIZERS["SGD"])
    for bad in (NUM_IDS, -1):
        columns["ids"][40, 1] = bad
        with pytest.raises(ModelError, match=f"'vectors': expected ids from 0 .* found {bad}"):
            job.train(columns, 32)


def test_a_broken_record_is_named(new_torch_job):
    def feed(dataset, mode, metadata):
        return (
            torch.tensor([float(value) for value in dataset.values])[:, None],
            torch.zeros(len(dataset), 1),
        )

    data = [b"1", b"2", b"oops", b"4"]
    job = new_torch_job(
        [b"1"], 2, model=lambda: nn.Linear(1, 1), feed=feed, loss=loss,
        optimizer=OPTIMIZERS["SGD"],
    )  # fmt: skip
    with pytest.raises(DataError, match=r"feed\(\) failed on record 2: ValueError.*oops"):
        job.train(data, 2)
