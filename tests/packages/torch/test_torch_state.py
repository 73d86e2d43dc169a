"""What steps of a model in PyTorch change beside parameters is carried, or refused by its name."""

import copy
import os
import random

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl.errors import ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch import nn  # noqa: E402  # after the skip
from torch.nn import functional as F  # noqa: E402  # as above

pytestmark = pytest.mark.torch

WIDTH = 5


def make_columns(count=48):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, WIDTH)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True) + 1}


def feed(dataset, mode, metadata):
    return dataset.columns["x"], dataset.columns["y"]


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def loss(labels, predictions):
    return F.mse_loss(predictions, labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(WIDTH, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


COUNTS = {"steps": 0}
SEEN = []
STEPS = 0


class Counting(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) / (1 + 0.1 * self.calls)


class OfItsClass(Net):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x)


class Remembering(Net):
    def __init__(self):
        super().__init__()
        self.before = None

    def forward(self, x):
        hidden = self.hidden(x)
        mixed = hidden if self.before is None else hidden + 0.1 * self.before
        self.before = mixed.detach()
        return self.out(torch.tanh(mixed))


class Beginning(Net):
    """Divides by what the first minibatch has."""

    scale = None

    def forward(self, x):
        if self.scale is None:
            self.scale = x.detach().std(0)
        return super().forward(x / self.scale)


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, predictions, labels):
        self.calls += 1
        return F.mse_loss(predictions, labels) * 0.9**self.calls


def with_a_global(labels, predictions):
    global STEPS
    STEPS += 1
    return loss(labels, predictions) * 0.9**STEPS


def with_a_dict(labels, predictions):
    COUNTS["steps"] += 1
    return loss(labels, predictions)


def with_a_list(labels, predictions):
    SEEN.append(float(predictions.detach().mean()))
    return loss(labels, predictions) + 0.1 * len(SEEN)


def with_an_attribute(labels, predictions):
    with_an_attribute.steps = getattr(with_an_attribute, "steps", 0) + 1
    return loss(labels, predictions)


def with_a_closure():
    steps = 0

    def closed(labels, predictions):
        nonlocal steps
        steps += 1
        return loss(labels, predictions)

    return closed


def with_a_default(labels, predictions, known=[0]):  # noqa: B006  # that is the point
    known[0] += 1
    return loss(labels, predictions)


def hooked(register):
    """A model of which a hook of a gradient counts."""
    net, calls = Net(), [0]

    def counted(gradient):
        calls[0] += 1

    getattr(next(net.parameters()), register)(counted)
    return net


KEPT = {
    "attribute": ({"model": Counting}, "model.calls"),
    "of a part": ({"model": lambda: nn.Sequential(Counting())}, "model.0.calls"),
    "class": ({"model": OfItsClass}, "OfItsClass.calls"),
    "tensor": ({"model": Remembering}, "model.before"),
    "first": ({"model": Beginning}, "model.scale"),
    "loss module": ({"loss": Annealed()}, "loss.calls"),
    "global": ({"loss": with_a_global}, "test_torch_state.py: STEPS"),
    "dict": ({"loss": with_a_dict}, r"test_torch_state.py: COUNTS\['steps'\]"),
    "list": ({"loss": with_a_list}, r"test_torch_state.py: SEEN\[0\]"),
    "function": ({"loss": with_an_attribute}, "loss.steps"),
    "closure": ({"loss": with_a_closure()}, "loss's steps"),
    "default": ({"loss": with_a_default}, r"loss's defaults\[0\]\[0\]"),
    "hook": ({"model": lambda: hooked("register_hook")}, r"a hook of model.* calls\[0\]"),
    "later hook": (
        {"model": lambda: hooked("register_post_accumulate_grad_hook")},
        r"calls\[0\]",
    ),
}


def begin(new_torch_job, **functions):
    functions = {"model": Net, "feed": feed, "loss": loss, "optimizer": optimizer, **functions}
    return new_torch_job(make_columns(), 16, **functions)


@pytest.mark.parametrize("name", KEPT)
def test_what_python_keeps_from_step_to_step_is_refused_by_its_name(name, new_torch_job):
    functions, kept = KEPT[name]
    with pytest.raises(ModelError, match=f"each step of training changes .*{kept}.*buffer"):
        begin(new_torch_job, **functions)


def test_what_steps_depend_on_where_nobody_looks_is_told(new_torch_job, caplog, monkeypatch):
    def of_environment(labels, predictions):
        os.environ["STEPS"] = str(int(os.environ["STEPS"]) + 1)
        return loss(labels, predictions) / int(os.environ["STEPS"])

    begin(new_torch_job)
    assert "another loss" not in caplog.text
    monkeypatch.setenv("STEPS", "0")
    begin(new_torch_job, loss=of_environment)
    assert "a step gives another loss, or gradient, after another step" in caplog.text


class Showing(Net):
    """Keeps nothing that the next step would meet."""

    def __init__(self):
        super().__init__()
        self.mask, self.penalty, self.shown = None, None, []

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.arange(WIDTH) / WIDTH
        hidden = self.hidden(x * self.mask)
        self.penalty = hidden.square().mean()
        self.shown[:] = [hidden.detach()]
        PENALTIES["of the step"] = self.penalty
        return self.out(hidden)


PENALTIES = {}


def test_what_each_step_leaves_anew_is_no_state(new_torch_job):
    def penalized(labels, predictions):
        return loss(labels, predictions) + PENALTIES["of the step"]

    job = begin(new_torch_job, model=Showing, loss=penalized)
    assert PENALTIES == {}
    assert len(job.train(make_columns(), 16)) == 3


class OfItsOptimizer(Net):
    """Divides by what it reads of the newest optimizer."""

    def __init__(self, made, reads):
        super().__init__()
        self.made, self.reads = made, reads

    def forward(self, x):
        return super().forward(x) / (1 + (self.reads(self.made[-1]) if self.made else 0))


def steps_of(optimizer):
    return max((float(of["step"]) for of in optimizer.state.values()), default=0.0)


def rate_of(optimizer):
    return optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize(
    ("reads", "given", "says"),
    [
        (steps_of, {}, "state, such as the number of steps"),
        (rate_of, {"has_schedule": True}, "learning rate"),
        (rate_of, {"callbacks": list}, "learning rate"),
        (rate_of, {}, ""),
    ],
    ids=["steps", "scheduled rate", "rate that callbacks set", "rate that nothing changes"],
)
def test_what_updates_change_in_an_optimizer_is_read_by_no_step(new_torch_job, reads, given, says):
    made, given = [], dict(given)
    has_schedule = given.pop("has_schedule", False)

    def kept(parameters):
        made.append(torch.optim.Adam(parameters, lr=0.05))
        decay = torch.optim.lr_scheduler.StepLR
        return decay(made[-1], step_size=5) if has_schedule else made[-1]

    functions = {"model": lambda: OfItsOptimizer(made, reads), "optimizer": kept, **given}
    if not says:
        begin(new_torch_job, **functions)
        return
    with pytest.raises(ModelError, match=f"reads the optimizer's {says}.*register_buffer"):
        begin(new_torch_job, **functions)


def test_trial_calls_leave_no_trace(new_torch_job):
    net = Counting()

    def drawing(labels, predictions):
        noise = random.random() + np.random.rand()
        return with_a_list(labels, predictions) * (1 + noise)

    random.seed(1)
    np.random.seed(1)
    expected = random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(ModelError, match=r"model.calls.*SEEN\[0\]"):
        begin(new_torch_job, model=lambda: net, loss=drawing)
    assert net.calls == 0
    assert SEEN == []
    assert (random.getstate(), np.random.get_state()[1].tolist()) == expected


class RunningScale(nn.Module):
    """Divides the error by a moving mean of itself."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))
        self.register_buffer("weight", torch.tensor(2.0))

    def forward(self, predictions, labels):
        error = F.mse_loss(predictions, labels)
        if self.training:
            self.mean.mul_(0.9).add_(error.detach(), alpha=0.1)
        return self.weight * error / self.mean


class Teacher(Net):
    """Is drawn to the predictions of a copy that follows it."""

    def __init__(self):
        super().__init__()
        nn.init.zeros_(self.hidden.bias)
        self.teacher = nn.Linear(WIDTH, 4).requires_grad_(False)
        self.teacher.load_state_dict(self.hidden.state_dict())

    def forward(self, x):
        with torch.no_grad():
            pairs = zip(self.teacher.parameters(), self.hidden.parameters(), strict=True)
            for slow, fast in pairs:
                slow.mul_(0.9).add_(fast, alpha=0.1)
        return self.out(torch.tanh(self.hidden(x) - 0.5 * self.teacher(x)))


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, 4))
        self.out = nn.utils.spectral_norm(nn.Linear(4, 1))

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


class Normalised(nn.Module):
    """Normalises what depends on other state: a slow copy, or vectors of a spectral norm."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.norm, self.out = inner, nn.BatchNorm1d(1, momentum=0.3), nn.Linear(1, 1)

    def forward(self, x):
        return self.out(self.norm(self.inner(x)))


class Averaging(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, momentum=None)

    def forward(self, x):
        return super().forward(self.norm(x))


class CountingInABuffer(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return super().forward(x) / (1 + 0.1 * self.calls)


class Counter(nn.Module):
    """Counts calls; `of` is another counter, whose buffer it has."""

    def __init__(self, of=None):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()) if of is None else of.calls)

    def forward(self, x):
        if self.training:
            self.calls.add_(1)
        return x / (1 + 0.1 * self.calls)


class SharingABuffer(Net):
    def __init__(self):
        super().__init__()
        self.one = Counter()
        self.other = Counter(self.one)

    def forward(self, x):
        return self.other(super().forward(self.one(x)))


class Validated(Net):
    """Divides by a moving mean that must not be negative."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.scale.mul_(0.9).add_(x.detach().std(), alpha=0.1)
        spread = torch.distributions.Normal(0.0, self.scale, validate_args=True)
        return super().forward(x / spread.stddev)


class Smallest(Net):
    """Subtracts the smallest that it has seen, and keeps what it has not begun to count."""

    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.full((2,), float("inf")))
        self.register_buffer("best", torch.tensor(float("-inf")))

    def forward(self, x):
        if self.training:
            self.low.copy_(torch.minimum(self.low, x.detach()[:, :2].amin(0)))
        return super().forward(x) - self.low.sum()


class Settling(Net):
    """Keeps the mean and variance of its norm after some steps."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        self.steps += self.training
        if self.steps > 4:
            self.norm.eval()
        return super().forward(self.norm(x))


def criterion_of_the_file(make=RunningScale):
    criterion = make()
    return lambda labels, predictions: criterion(predictions, labels)


CARRIED = {
    "loss": (Net, RunningScale),
    "a module that the loss calls": (Net, criterion_of_the_file),
    "teacher": (Teacher, nn.MSELoss),
    "spectral norm": (Spectral, nn.MSELoss),
    "mean of all minibatches": (Averaging, nn.MSELoss),
    "counter": (CountingInABuffer, nn.MSELoss),
    "a buffer of two modules": (SharingABuffer, nn.MSELoss),
    "a moving mean that is validated": (Validated, nn.MSELoss),
    "what begins with inf": (Smallest, nn.MSELoss),
    "a mode that follows a counter": (Settling, nn.MSELoss),
    "normalised teacher": (lambda: Normalised(Teacher()), nn.MSELoss),
    "normalised spectral norm": (lambda: Normalised(Spectral()), nn.MSELoss),
}


def test_a_copy_that_equals_what_it_follows_and_what_depends_on_it_have_their_momenta(
    new_torch_job,
):
    job = begin(new_torch_job, model=lambda: Normalised(Teacher()))
    momenta = {v.name.rpartition(".")[2]: v.momentum for v in job.description.state}
    assert momenta == pytest.approx(
        {"weight": 0.9, "bias": 0.9, "running_mean": 0.7, "running_var": 0.7,
         "num_batches_tracked": 1.0}
    )  # fmt: skip


@pytest.mark.parametrize("name", CARRIED)
def test_state_that_can_be_carried_is_that_of_a_plain_loop(name, new_torch_job):
    model, make_loss = CARRIED[name]
    columns, criterion = make_columns(), make_loss()
    plain = model().train()
    begins = copy.deepcopy(plain.state_dict())

    def same_model():
        made = model()
        made.load_state_dict(begins)
        return made

    job = begin(new_torch_job, model=same_model, loss=make_loss())
    made = optimizer(plain.parameters())
    for _ in range(4):
        for minibatch in job.minibatches(columns, 16):
            predictions, labels = plain(minibatch.features), minibatch.labels
            is_module = isinstance(criterion, nn.Module)
            both = (predictions, labels) if is_module else (labels, predictions)
            value = criterion(*both)
            made.zero_grad()
            value.backward()
            made.step()
            assert job.step(minibatch).loss == pytest.approx(value.item(), rel=1e-5)
    dense, state = job.parameters()
    values = {
        v.name: flat[v.offset : v.offset + int(np.prod(v.shape))].reshape(v.shape)
        for flat, of in ((dense, job.description.dense), (state, job.description.state))
        for v in of
    }
    for key, value in plain.state_dict().items():
        if key in values:
            np.testing.assert_allclose(values[key], value, rtol=1e-5, atol=1e-6, err_msg=key)
    assert values.keys() >= plain.state_dict().keys() - {"out.weight", "other.calls"}
    if isinstance(criterion, nn.Module) and dict(criterion.named_buffers()):
        assert values["loss.mean"] == pytest.approx(criterion.mean.item(), rel=1e-5)


@pytest.mark.parametrize("mode", [Mode.EVALUATION, Mode.PREDICTION])
@pytest.mark.parametrize("name", CARRIED)
def test_a_job_without_training_has_the_variables_of_the_checkpoint(name, mode, new_torch_job):
    model, make_loss = CARRIED[name]

    def variables(mode):
        def fed(dataset, mode, metadata):
            both = feed(dataset, mode, metadata)
            return both[0] if mode == Mode.PREDICTION else both

        job = begin(new_torch_job, model=model, loss=make_loss(), feed=fed, mode=mode)
        return [[v.name for v in of] for of in (job.description.dense, job.description.state)]

    assert variables(mode) == variables(Mode.TRAINING)


def test_a_loss_that_refuses_nan_may_follow_a_buffer_that_is_tried_out(new_torch_job):
    class Scaled(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("variance", torch.ones(WIDTH))

        def forward(self, x):
            if self.training:
                self.variance.mul_(0.9).add_(x.detach().var(0), alpha=0.1)
            return torch.sigmoid(super().forward(x / (self.variance + 1e-5).sqrt()))

    def between(labels, predictions):
        return F.binary_cross_entropy(predictions, (labels > 0).float())

    job = begin(new_torch_job, model=Scaled, loss=between)
    assert [v.momentum for v in job.description.state] == [pytest.approx(0.9)]
    assert np.isfinite(job.train(make_columns(), 16)).all()


def test_a_counter_ends_the_job_before_a_float32_cannot_count(new_torch_job):
    class Both(CountingInABuffer):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH, affine=False)

        def forward(self, x):
            return super().forward(self.norm(x))

    job = begin(new_torch_job, model=Both)
    [calls] = [v for v in job.description.state if v.name == "calls"]
    minibatch = next(job.minibatches(make_columns(), 16))
    given = job.given(minibatch, training=True)
    state = given.state.copy()
    state[-1] = 2**24  # of the batch norm, which goes on
    state[calls.offset] = 2**24 - 2
    result = job.backend.train_step(minibatch, given.rows, given.dense, state)
    assert result.state_delta[calls.offset] == 1
    state[calls.offset] += 1
    with pytest.raises(ModelError, match="buffer 'calls' has counted to 16777216"):
        job.backend.train_step(minibatch, given.rows, given.dense, state)


def test_one_buffer_of_two_modules_of_which_a_step_makes_two_is_refused(new_torch_job):
    class Parting(SharingABuffer):
        def forward(self, x):
            self.other.calls = self.other.calls + 1
            return super().forward(x)

    with pytest.raises(ModelError, match=r"buffers 'one\.calls' and 'other\.calls' are one tensor"):
        begin(new_torch_job, model=Parting)


class LateTeacher(Teacher):
    """Follows every second step."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.steps += 1
        if self.steps % 2 == 0:
            with torch.no_grad():
                self.teacher.weight.mul_(0.9)
        return self.out(torch.tanh(self.hidden(x) - 0.5 * self.teacher(x)))


def test_a_parameter_that_a_later_step_changes_ends_the_job(new_torch_job):
    net = LateTeacher()
    net.steps += 2
    job = begin(new_torch_job, model=lambda: net)
    with pytest.raises(ModelError, match=r"changes its parameter 'teacher\.weight' with this"):
        job.train(make_columns(), 16)
