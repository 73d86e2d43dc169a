"""Keras callbacks of a job: made anew for each call, they decide as in one process."""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import elasticdl.callbacks
from elasticdl.callbacks import JobControl
from elasticdl.errors import ModelError
from elasticdl.job import Moment, MomentKind
from elasticdl.packages.keras.callbacks import job_callbacks
from elasticdl.packages.keras.metrics.collection import Metrics
from tests.packages.frameworks.called import VALUES, call, moments

pytestmark = pytest.mark.keras


def metrics():
    return {"auc": keras.metrics.AUC(), "own": lambda labels, predictions: predictions}


def watched(given=metrics, weighted=None, outputs=("out",)):
    """Return what a job knows of metrics, when it has seen a minibatch."""
    made, values = Metrics(given, weighted), tf.constant([[0.0], [1.0]])
    parts = values if len(outputs) == 1 else dict.fromkeys(outputs, values)
    made.resolve(parts, parts, outputs)
    return made.watched()


def run(make, moments, rate=0.1, optimizer=None):
    """Call callbacks for each moment as workers do; yield (result, rate in force)."""
    return call(job_callbacks(make, optimizer or keras.optimizers.SGD(rate), watched()), moments)


class KerasModel:
    """What Keras' own callbacks use of a model."""

    def __init__(self, rate):
        self.optimizer = SimpleNamespace(learning_rate=rate)
        self.stop_training = False


def in_one_process(callback, values, name):
    """Return after how many epochs Keras stops, and the rate after each."""
    model, rates = KerasModel(0.1), []
    callback.set_model(model)
    callback.on_train_begin()
    for epoch, value in enumerate(values):
        callback.on_epoch_end(epoch, {name: value})
        rates.append(model.optimizer.learning_rate)
        if model.stop_training:
            break
    return rates


@pytest.mark.parametrize("patience", [0, 1, 2, 3])
@pytest.mark.parametrize("settings", [{}, {"min_delta": 0.015}, {"start_from_epoch": 3}])
def test_early_stopping_stops_at_the_evaluation_at_which_keras_does(patience, settings):
    def make(mode="auto"):
        return [keras.callbacks.EarlyStopping("val_auc", patience=patience, mode=mode, **settings)]

    expected = in_one_process(make("max")[0], VALUES, "val_auc")
    results = list(run(make, moments(VALUES)))[1:]
    assert len(results) == len(expected)
    assert results[-1].stop == ("EarlyStopping" if len(expected) < len(VALUES) else "")


@pytest.mark.parametrize("patience", [0, 1, 2, 3])
@pytest.mark.parametrize("settings", [{}, {"min_delta": 0.015}, {"start_from_epoch": 3},
                                      {"baseline": 0.71}])  # fmt: skip
@pytest.mark.parametrize("mode", ["min", "max"])
def test_that_of_models_in_pytorch_stops_when_that_of_keras_does(mode, settings, patience):
    settings = {"patience": patience, "mode": mode} | settings
    expected = in_one_process(
        keras.callbacks.EarlyStopping("val_auc", **settings), VALUES, "val_auc"
    )
    callback, control = (
        elasticdl.callbacks.EarlyStopping("val_auc", **settings),
        JobControl(0.1, 20),
    )
    callback.join(control)
    seen = 0
    while seen < len(VALUES) and not control.is_stopped:
        callback.on_evaluation_end(seen, {"val_auc": VALUES[seen]})
        seen += 1
    assert seen == len(expected)


def test_a_metric_that_an_evaluation_does_not_have_is_refused_then():
    """A metric may have several numbers, which nobody knows before the first evaluation."""
    make = lambda: [keras.callbacks.EarlyStopping("val_auc")]  # noqa: E731
    with pytest.raises(ModelError, match=r"'val_auc'.* the evaluation has loss, val_auc_0: expect"):
        list(run(make, moments(VALUES, name="val_auc/0")))


def test_losses_are_watched_at_the_end_of_epochs():
    def make():
        return [keras.callbacks.EarlyStopping("loss", patience=1)]

    falling = [1.0, 0.9, 0.95, 0.93, 0.8]
    of_epochs = list(run(make, moments(falling, MomentKind.EPOCH_END)))
    assert [bool(result.stop) for result in of_epochs] == [False, False, False, True]
    assert not any(result.stop for result in run(make, moments(falling * 3)))  # evaluations


@pytest.mark.parametrize("settings", [{}, {"cooldown": 2}, {"min_lr": 0.03}])
def test_reduce_lr_on_plateau_reduces_when_keras_does(settings):
    def make(mode="auto"):
        return [
            keras.callbacks.ReduceLROnPlateau("val_auc", 0.5, patience=1, mode=mode, **settings)
        ]

    expected = in_one_process(make("max")[0], VALUES, "val_auc")
    rates = [result.learning_rate or 0.1 for result in run(make, moments(VALUES))][1:]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert len(set(rates)) > 1


def test_a_callback_of_the_users_own_remembers_and_is_told_of_all():
    told = []

    class Mine(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.count, self.best, self.seen = 0, np.float32(0), {"epochs": [], "pair": (1, 2.5)}

        def on_train_begin(self, logs=None):
            told.append(("begin", self.params["epochs"]))

        def on_epoch_begin(self, epoch, logs=None):
            told.append(("epoch", epoch))

        def on_epoch_end(self, epoch, logs=None):
            self.count += 1
            self.best = max(self.best, np.float32(logs["loss"]))
            self.seen["epochs"].append(epoch)
            told.append(("epoch end", epoch, self.count, float(self.best), self.seen["pair"]))

        def on_test_end(self, logs=None):
            told.append(("test end", logs))
            if self.count:
                self.model.optimizer.learning_rate *= 0.5

        def on_train_end(self, logs=None):
            told.append(("end", self.seen["epochs"]))
            self.model.stop_training = True

    happened = [
        Moment(MomentKind.TRAIN_BEGIN),
        Moment(MomentKind.EPOCH_END, 0, {"loss": 0.5}),
        Moment(MomentKind.EVALUATION, 0, {"loss": 0.25, "val_out/auc": 0.75}),
        Moment(MomentKind.EPOCH_END, 19, {"loss": 0.25}),
        Moment(MomentKind.TRAIN_END),
    ]
    results = list(run(lambda: [Mine()], happened))
    assert told == [
        ("begin", 20),
        ("epoch", 0),
        ("epoch end", 0, 1, 0.5, (1, 2.5)),
        ("epoch", 1),
        ("test end", {"out_auc": 0.75}),
        ("epoch end", 19, 2, 0.5, (1, 2.5)),
        ("end", [0, 19]),
    ]
    assert results[-1].learning_rate == pytest.approx(0.05)
    assert results[-1].stop == "Mine"
    json.loads(results[-1].state)


@pytest.mark.parametrize(
    "halve",
    [
        lambda optimizer: optimizer.learning_rate.assign(optimizer.learning_rate * 0.5),
        lambda optimizer: optimizer.learning_rate.assign(optimizer.learning_rate.numpy() / 2),
        lambda optimizer: setattr(optimizer, "learning_rate", optimizer.learning_rate.value / 2),
        lambda optimizer: setattr(
            optimizer, "lr", keras.ops.convert_to_tensor(optimizer.learning_rate) / 2
        ),
        lambda optimizer: setattr(
            optimizer, "lr", float(keras.ops.convert_to_numpy(optimizer.learning_rate)) / 2
        ),
    ],
    ids=["assign", "numpy", "value", "tensor", "array"],
)
def test_a_callback_sets_the_rate_in_each_way_that_keras_has(halve):
    class Halving(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            halve(self.model.optimizer)

    happened = [Moment(MomentKind.EPOCH_END, epoch, {"loss": 0.5}) for epoch in range(2)]
    rates = [result.learning_rate for result in run(lambda: [Halving()], happened)]
    assert rates == pytest.approx([0.05, 0.025])


class Batches(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


REFUSED = {
    "has on_train_batch_end, which cannot run here": lambda: [Batches()],
    "has on_train_batch_begin": lambda: [
        keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: None)
    ],
    r"restore_best_weights=True.*--checkpoint_dir": lambda: [
        keras.callbacks.EarlyStopping("val_auc", restore_best_weights=True)
    ],
    "monitor='val_acc'.*expected one of loss, val_loss, val_auc, val_own": lambda: [
        keras.callbacks.EarlyStopping("val_acc")
    ],
    "monitor='auc'. watches the metric of training.*monitor='val_auc'": lambda: [
        keras.callbacks.EarlyStopping("auc")
    ],
    'say mode="max" or mode="min"': lambda: [keras.callbacks.EarlyStopping("val_own")],
    "ModelCheckpoint, which cannot run here": lambda: [keras.callbacks.ModelCheckpoint("x.keras")],
    "ModelCheckpoint, which cannot run here.*--keep_best": lambda: [
        type("Best", (keras.callbacks.ModelCheckpoint,), {})("x.keras")
    ],
    "Nan has on_batch_end": lambda: [type("Nan", (keras.callbacks.TerminateOnNaN,), {})()],
    "LearningRateScheduler, which cannot run here.*elasticdl.callbacks": lambda: [
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)
    ],
    "EarlyStopping, an elasticdl.*in PyTorch; .* keras.callbacks.EarlyStopping": lambda: [
        elasticdl.callbacks.EarlyStopping("val_auc")
    ],
    "Callback, an elasticdl.* that derive from keras.callbacks.Callback": lambda: [
        elasticdl.callbacks.Callback()
    ],
    "expected a keras.callbacks.Callback": lambda: [print],
    r"returns the class EarlyStopping: expected an object, EarlyStopping\(": lambda: [
        keras.callbacks.EarlyStopping
    ],
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_a_callback_could_not_do_is_refused_before_training(message):
    with pytest.raises(ModelError, match=message):
        job_callbacks(REFUSED[message], keras.optimizers.SGD(0.1), watched())


@pytest.mark.parametrize(
    ("given", "outputs", "monitor"),
    [
        (lambda: [keras.metrics.AUC()], ["out"], "val_auc"),
        (lambda: [keras.metrics.AUC], ["out"], "val_auc"),
        (lambda: [keras.metrics.AUC(), keras.metrics.AUC(curve="PR")], ["out"], "val_auc_1"),
        (lambda: [["mae"], [keras.metrics.AUC()]], ["a", "b"], "val_b_auc"),
        (lambda: {"a": "mae", "b": keras.metrics.AUC()}, ["a", "b"], "val_b_auc"),
    ],
)
def test_a_metric_is_watched_by_the_name_that_the_logs_have(given, outputs, monitor):
    given()  # Keras numbers what is made later: auc_1
    make = lambda: [keras.callbacks.EarlyStopping(monitor)]  # noqa: E731
    job_callbacks(make, keras.optimizers.SGD(0.1), watched(given, outputs=outputs))


def test_a_weighted_metric_is_watched():
    known = watched(lambda: ["mae"], lambda: ["mae", keras.metrics.AUC()])
    assert known == {"mae": "min", "weighted_mae": "min", "auc": "max"}


def test_a_rate_that_a_callback_schedules_cannot_be_reduced_on_plateau():
    make = lambda: [  # noqa: E731
        elasticdl.callbacks.LearningRateScheduler(lambda version: 0.1),
        keras.callbacks.ReduceLROnPlateau("val_auc"),
    ]
    with pytest.raises(ModelError, match="learning rate is a schedule, which it cannot set"):
        job_callbacks(make, keras.optimizers.SGD(0.1), watched())


def test_a_schedule_cannot_be_reduced_on_plateau():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    with pytest.raises(ModelError, match="learning rate is a schedule, which it cannot set"):
        list(
            run(
                lambda: [keras.callbacks.ReduceLROnPlateau("val_auc")],
                [],
                optimizer=keras.optimizers.SGD(schedule),
            )
        )


def test_a_callback_that_sets_a_rate_that_is_a_schedule_is_refused():
    class Sets(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.optimizer.learning_rate = 0.01

    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    happened = [Moment(MomentKind.EPOCH_END, 0, {"loss": 0.5})]
    with pytest.raises(ModelError, match="sets the learning rate, which is a schedule"):
        list(run(lambda: [Sets()], happened, optimizer=keras.optimizers.SGD(schedule)))


class Reads(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.get_weights()


class Forgets(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model_before = keras.Sequential()


class Raises(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise KeyError("nothing")


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (Reads, "a callback uses model.get_weights"),
        (Forgets, "Forgets sets model_before to a Sequential"),
        (Raises, "callback Raises raised KeyError at epoch end: 'nothing'"),
    ],
)
def test_what_a_callback_cannot_do_is_said_when_it_does(callback, message):
    with pytest.raises(ModelError, match=message):
        list(run(lambda: [callback()], [Moment(MomentKind.EPOCH_END, 0, {"loss": 1.0})]))


def test_terminate_on_nan_is_what_a_job_does_anyway():
    make = lambda: [keras.callbacks.TerminateOnNaN()]  # noqa: E731
    assert job_callbacks(make, keras.optimizers.SGD(0.1), watched()) is None


def test_the_loss_of_an_evaluation_is_that_of_keras(new_job):
    rng = np.random.default_rng(2)
    columns = {
        "x": rng.normal(size=(20, 3)).astype(np.float32),
        "y": rng.normal(size=20).astype(np.float32),
    }

    def model():
        inputs = keras.Input((3,))
        x = keras.layers.Dense(4, kernel_regularizer="l2")(inputs)
        x = keras.layers.ActivityRegularization(0.1)(x)
        return keras.Model(inputs, keras.layers.Dense(1)(x))

    def squared(labels, predictions):
        return tf.square(labels - predictions[:, 0])

    job = new_job(
        columns, 8, model=model, loss=squared, optimizer=lambda: keras.optimizers.SGD(0.01),
        feed=lambda dataset, mode, metadata: dataset.map(lambda r: (r["x"], r["y"])),
        callbacks=lambda: [keras.callbacks.EarlyStopping()],
    )  # fmt: skip
    job.train(columns, 8)
    plain = model()
    weights, flat = plain.trainable_variables, job.parameters()[0]
    for variable in weights:
        size = int(np.prod(variable.shape))
        variable.assign(flat[:size].reshape(variable.shape))
        flat = flat[size:]
    plain.compile(loss=lambda y, p: tf.square(y[:, 0] - p[:, 0]), jit_compile=False)
    expected = plain.evaluate(columns["x"], columns["y"][:, None], batch_size=8, verbose=0)
    assert job.evaluate(columns, 8)["loss"] == pytest.approx(expected, rel=1e-5)
    job.backend.new_metrics()
    assert job.backend.metric_states() == {}  # of training: the job has the loss


def test_hooks_of_predict_are_not_called_as_fit_does_not():
    class Predicts(keras.callbacks.Callback):
        def on_predict_begin(self, logs=None):
            raise AssertionError

        def on_predict_batch_end(self, batch, logs=None):
            raise AssertionError

    happened = [*moments([0.5]), Moment(MomentKind.TRAIN_END)]
    assert len(list(run(lambda: [Predicts()], happened))) == 3
