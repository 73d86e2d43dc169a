"""Callbacks of a model in PyTorch: made anew for each call, they decide as in one process."""

import json

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateScheduler,
    MonitorCallback,
    ReduceLROnPlateau,
)
from elasticdl.errors import ModelError
from elasticdl.job import CallbackCall, Moment, MomentKind
from tests.packages.frameworks.called import VALUES, call, moments

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

import torchmetrics  # noqa: E402  # after the skip
from torch import nn  # noqa: E402  # as above
from torch.nn import functional as F  # noqa: E402  # as above

from elasticdl.packages.torch.callbacks import job_callbacks  # noqa: E402  # as above

pytestmark = pytest.mark.torch

DIRECTIONS = {"auc": "max", "own": None, "each": "max"}
NAN = float("nan")


def run(make, moments, rate=0.1):
    """Call callbacks for each moment as workers do; yield the results until one stops."""
    return call(job_callbacks(make, rate, DIRECTIONS), moments)


def num_values_until_stop(make, values, **named):
    results = list(run(make, moments(values, **named)))[1:]
    return len(results) if results[-1].stop else None


@pytest.mark.parametrize(
    ("settings", "values", "stops_after"),
    [
        ({}, VALUES, 3),
        ({"patience": 2}, VALUES, 6),
        ({"patience": 3}, VALUES, 7),
        ({"patience": 3, "min_delta": 0.015}, VALUES, 5),
        ({"patience": 1, "start_from_epoch": 3}, VALUES, 5),
        ({"patience": 2, "baseline": 0.6}, [0.1, 0.2, 0.15], 3),
        ({"patience": 9}, VALUES, None),
        ({"patience": 2}, [NAN, 0.5, NAN, 0.6, NAN, NAN], 6),
        ({"mode": "min", "patience": 2}, [0.5, 0.4, 0.4, 0.4], 4),
    ],
)
def test_early_stopping_counts_the_evaluations_that_are_not_better(settings, values, stops_after):
    make = lambda: [EarlyStopping("val_auc", **settings)]  # noqa: E731
    assert num_values_until_stop(make, values) == stops_after


def test_losses_are_watched_at_the_end_of_epochs():
    make = lambda: [EarlyStopping("loss", patience=1)]  # noqa: E731
    falling = [1.0, 0.9, 0.95, 0.93, 0.8]
    assert num_values_until_stop(make, falling, kind=MomentKind.EPOCH_END) == 3
    assert num_values_until_stop(make, falling * 3) is None  # evaluations


SETTINGS = [
    {},
    {"cooldown": 2},
    {"min_lr": 0.03},
    {"threshold": 0.015, "threshold_mode": "abs"},
    {"threshold": 0.02},
    {"eps": 0.04},
]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_reduce_lr_on_plateau_reduces_when_that_of_pytorch_does(settings, mode):
    make = lambda: [ReduceLROnPlateau("val_own", mode, 0.5, patience=1, **settings)]  # noqa: E731
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    of_torch = torch.optim.lr_scheduler.ReduceLROnPlateau
    plain = of_torch(optimizer, mode, 0.5, patience=1, **settings)
    values = [*VALUES[:8], NAN, *VALUES[8:]]
    expected = []
    for value in values:
        plain.step(value)
        expected.append(optimizer.param_groups[0]["lr"])

    results = list(run(make, moments(values, name="val_own")))[1:]
    assert [r.learning_rate or 0.1 for r in results] == expected
    assert len(set(expected)) > 1


def test_a_callback_of_the_users_own_remembers_and_is_told_of_all():
    told = []

    class Mine(Callback):
        def __init__(self):
            self.count, self.best, self.seen = 0, np.float32(0), {"epochs": [], "pair": (1, 2.5)}

        def on_train_begin(self):
            told.append(("begin", self.num_epochs, self.learning_rate))

        def on_epoch_begin(self, epoch):
            told.append(("epoch", epoch))

        def on_epoch_end(self, epoch, logs):
            self.count += 1
            self.best = max(self.best, np.float32(logs["loss"]))
            self.seen["epochs"].append(epoch)
            told.append(("epoch end", epoch, self.count, float(self.best), self.seen["pair"]))

        def on_evaluation_end(self, evaluation, logs):
            told.append(("evaluation end", evaluation, logs["val_out/auc"]))
            if self.count:
                self.learning_rate *= 0.5

        def on_train_end(self, logs):
            told.append(("end", self.seen["epochs"]))
            self.stop_training()

    happened = [
        Moment(MomentKind.TRAIN_BEGIN),
        Moment(MomentKind.EPOCH_END, 0, {"loss": 0.5}),
        Moment(MomentKind.EVALUATION, 0, {"loss": 0.25, "val_out/auc": 0.75}),
        Moment(MomentKind.EPOCH_END, 19, {"loss": 0.25}),
        Moment(MomentKind.TRAIN_END),
    ]
    results = list(run(lambda: [Mine()], happened))
    assert told == [
        ("begin", 20, 0.1),
        ("epoch", 0),
        ("epoch end", 0, 1, 0.5, (1, 2.5)),
        ("epoch", 1),
        ("evaluation end", 0, 0.75),
        ("epoch end", 19, 2, 0.5, (1, 2.5)),
        ("end", [0, 19]),
    ]
    assert results[-1].learning_rate == pytest.approx(0.05)
    assert results[-1].stop == "Mine"
    json.loads(results[-1].state)


class Batches(Callback):
    def on_train_batch_end(self, batch):
        pass


class NoMonitor(MonitorCallback):
    def __init__(self):
        pass


KerasCallback = type("EarlyStopping", (), {"__module__": "keras.src.callbacks.early_stopping"})

REFUSED = {
    "has on_train_batch_end, which the job does not call.*on_epoch_end": lambda: [Batches()],
    "restore_best_weights": lambda: [EarlyStopping("val_auc", restore_best_weights=True)],
    "monitor='val_acc'.*expected one of loss, val_loss, val_auc, val_own": lambda: [
        EarlyStopping("val_acc")
    ],
    "monitor='auc'. watches the metric of training.*monitor='val_auc'": lambda: [
        EarlyStopping("auc")
    ],
    'say mode="max" or mode="min"': lambda: [ReduceLROnPlateau("val_own")],
    "mode='up'.: expected one of auto, min, max": lambda: [EarlyStopping("val_auc", mode="up")],
    "factor=2.: expected less than 1": lambda: [ReduceLROnPlateau("val_auc", factor=2)],
    "threshold_mode='x'.: expected rel or abs": lambda: [
        ReduceLROnPlateau("val_auc", threshold_mode="x")
    ],
    r"NoMonitor: its __init__ has to call super\(\).__init__\(monitor\)": lambda: [NoMonitor()],
    "a callback of Keras, which a model in PyTorch .*use elasticdl.callbacks.EarlyStopping": (
        lambda: [KerasCallback()]
    ),
    "expected a Callback, EarlyStopping": lambda: [print],
    "callbacks must return a list, found EarlyStopping": lambda: EarlyStopping("val_auc"),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_callback_could_not_do_is_refused_before_training(message):
    with pytest.raises(ModelError, match=message):
        job_callbacks(REFUSED[message], 0.1, DIRECTIONS)


def test_a_value_of_a_metric_that_has_several_is_watched():
    make = lambda: [EarlyStopping("val_each/1")]  # noqa: E731
    assert num_values_until_stop(make, VALUES, name="val_each/1") == 3
    with pytest.raises(ModelError, match=r"EarlyStopping.*'val_each/1'.*has val_x"):
        list(run(make, moments(VALUES, name="val_x")))


def test_a_callback_of_the_users_own_may_watch_a_quantity():
    class Twice(MonitorCallback):
        def __init__(self):
            super().__init__("val_own", "max")
            self.high = []

        def watch(self, number, value):
            self.high += [number] if value > 0.7 else []
            if len(self.high) == 2:
                self.stop_training()

    assert num_values_until_stop(lambda: [Twice()], VALUES, name="val_own") == 5


class Forgets(Callback):
    def on_epoch_end(self, epoch, logs):
        self.best = torch.ones(1)


class Raises(Callback):
    def on_epoch_end(self, epoch, logs):
        raise KeyError("nothing")


class TooFast(Callback):
    def on_epoch_end(self, epoch, logs):
        self.learning_rate = -1


class TooSoon(Callback):
    def __init__(self):
        self.stop_training()


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (Forgets, "Forgets sets best to a Tensor.*remember numbers"),
        (Raises, "callback Raises raised KeyError at epoch end: 'nothing'"),
        (TooFast, "a callback sets the learning rate to -1.0"),
        (TooSoon, "callback TooSoon uses the job before the job calls it"),
    ],
)
def test_what_a_callback_cannot_do_is_said_when_it_does(callback, message):
    with pytest.raises(ModelError, match=message):
        list(run(lambda: [callback()], [Moment(MomentKind.EPOCH_END, 0, {"loss": 1.0})]))


# --- with a model ---------------------------------------------------------------------------------


def feed(dataset, mode, metadata):
    x, y = dataset.columns["x"], dataset.columns["y"]
    return x if mode == Mode.PREDICTION else (x, y)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def step_lr(parameters):
    return torch.optim.lr_scheduler.StepLR(sgd(parameters), step_size=3)


def squared(labels, predictions):
    return F.mse_loss(predictions, labels)


def columns(count=20):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(count, 3)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}


@pytest.fixture
def job_with(new_torch_job):
    def new(callbacks, optimizer=sgd, **functions):
        return new_torch_job(
            columns(), 8, model=lambda: nn.Linear(3, 1), feed=feed, loss=squared,
            optimizer=optimizer, callbacks=lambda: callbacks, **functions,
        )  # fmt: skip

    return new


def test_the_loss_of_an_evaluation_is_the_mean_over_its_records(job_with):
    job = job_with([EarlyStopping()])
    assert job.backend.callbacks.watches == "EarlyStopping(monitor='val_loss')"
    data = columns()
    predictions = torch.from_numpy(job.predict(data, 8))
    expected = squared(torch.from_numpy(data["y"]), predictions)
    assert job.evaluate(data, 8) == {"loss": pytest.approx(expected.item(), rel=1e-5)}
    job.backend.new_metrics()
    assert job.backend.metric_states() == {}  # of training: the job has the loss


def test_an_evaluation_has_the_loss_though_no_callback_watches_it_and_a_metric_may_have_its_name(
    job_with,
):
    job = job_with([Raises(), EarlyStopping("loss")])
    assert job.backend.callbacks.watches == ""
    assert job.evaluate(columns(), 8).keys() == {"loss"}
    job = job_with([], eval_metrics_fn=lambda: {"loss": lambda labels, predictions: 7.0})
    assert job.evaluate(columns(), 8) == {"loss": 7.0}


def test_metrics_of_torchmetrics_say_whether_more_is_better(job_with):
    metrics = lambda: {"error": torchmetrics.MeanSquaredError()}  # noqa: E731
    job = job_with([EarlyStopping("val_error", patience=1)], eval_metrics_fn=metrics)
    state = ""
    for number, value in enumerate([0.5, 0.4, 0.4]):
        moment = Moment(MomentKind.EVALUATION, number, {"val_error": value})
        result = job.backend.run_callbacks(CallbackCall(state, None, moment, 20), True)
        state = result.state
        assert result.stop == ("EarlyStopping" if number == 2 else "")


def test_a_callback_reads_the_learning_rate_of_the_optimizer(job_with):
    job = job_with([ReduceLROnPlateau("loss", patience=0)])
    state = ""
    for number, rate in enumerate([None, 0.01]):
        moment = Moment(MomentKind.EPOCH_END, number, {"loss": 1.0})
        result = job.backend.run_callbacks(CallbackCall(state, None, moment, 20), True)
        state = result.state
        assert result.learning_rate == (rate and pytest.approx(rate))


def test_a_scheduler_gives_the_rate_of_each_update(job_with):
    job = job_with([LearningRateScheduler(lambda version: 0.1 / (1 + version))])
    assert job.backend.callbacks is None
    assert [job.backend.learning_rate(version) for version in (0, 1, 4)] == [0.1, 0.05, 0.02]


@pytest.mark.parametrize("optimizer", [sgd, step_lr])
def test_a_schedule_cannot_be_reduced_on_plateau(optimizer, job_with):
    callbacks = [ReduceLROnPlateau("loss")]
    if optimizer is sgd:
        callbacks.append(LearningRateScheduler(lambda version: 0.1 / (1 + version)))
    with pytest.raises(ModelError, match="learning rate is a schedule, which it cannot set"):
        job_with(callbacks, optimizer)
