"""What a model file writes means what it means to Keras, or is refused before training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import ModelError
from elasticdl.layers import Embedding
from tests.packages.keras.plain_model import FUNCTIONS, data, dense, feed, sgd, squared

pytestmark = pytest.mark.keras


class TestMethodsThatAJobDoesNotCall:
    @pytest.mark.parametrize(
        ("name", "remedy"),
        [
            ("train_step", "write the loss as loss"),
            ("compute_loss", "write the loss as loss"),
            ("test_step", "name metrics in eval_metrics_fn"),
            ("compute_metrics", "name metrics in eval_metrics_fn"),
            ("predict_step", r"return from call\(\) what predictions are to be"),
            ("compile", r"write optimizer\(\), loss"),
            ("fit", r"goes into feed\(\)"),
            ("make_train_function", r"goes into feed\(\)"),
            ("trainable_weights", r"set layer\.trainable = False"),
        ],
    )
    def test_one_of_the_models_own_is_refused_with_what_to_write(self, new_job, name, remedy):
        def own(self, *args, **kwargs):
            raise AssertionError("a job does not call it")

        base = type("Base", (keras.Model,), {name: own})
        model = type("Mine", (base,), {"call": lambda self, x: x[:, :1]})
        with pytest.raises(ModelError, match=rf"\(Mine\) has its own {name}.*{remedy}"):
            new_job(data(), 16, model=model, **FUNCTIONS)

    def test_one_that_is_set_on_a_functional_model_is_refused(self, new_job):
        def model():
            made = dense()
            made.train_step = lambda given: {}
            return made

        with pytest.raises(ModelError, match=r"\(Functional\) has its own train_step"):
            new_job(data(), 16, model=model, **FUNCTIONS)

    def test_a_property_of_metrics_is_refused(self, new_job):
        class Mine(keras.Model):
            metrics = property(lambda self: [])

            def call(self, x):
                return x[:, :1]

        with pytest.raises(ModelError, match=r"its own metrics.*eval_metrics_fn"):
            new_job(data(), 16, model=Mine, **FUNCTIONS)

    def test_a_compiled_model_is_refused(self, new_job):
        def model():
            made = dense()
            made.compile("adam", "mse", metrics=["mae"])
            return made

        with pytest.raises(ModelError, match=r"compiled model.*uses nothing of it.*compile=False"):
            new_job(data(), 16, model=model, **FUNCTIONS)

    def test_a_subclass_with_methods_of_other_names_is_trained(self, new_job):
        class Mine(keras.Model):
            def __init__(self):
                super().__init__()
                self.out = keras.layers.Dense(1)

            def get_config(self):
                return {}

            def tower(self, x):
                return self.out(x)

            def call(self, x, training=False):
                return self.tower(x)

        job = new_job(data(), 16, model=Mine, **FUNCTIONS)
        job.train(data(), 16)
        assert job.losses[-1] < job.losses[0]


class TestLosses:
    class Noted(keras.layers.Layer):
        """Adds a number and a vector to the loss, as layers may."""

        def call(self, x):
            self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x)))
            self.add_loss(0.001 * keras.ops.sum(x, axis=1))
            return x

    class Whole(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = keras.layers.Dense(
                3, kernel_regularizer="l2", bias_regularizer="l1", activity_regularizer="l2"
            )
            self.noted = TestLosses.Noted()
            self.out = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L1L2(0.1, 0.1))

        def call(self, x):
            hidden = self.noted(self.hidden(x))
            self.add_loss(0.1 * keras.ops.mean(keras.ops.abs(hidden)))
            return self.out(hidden)

    def test_added_losses_and_regularizers_train_as_in_keras(self, new_job):
        given = data(16)
        job = new_job(given, 16, model=self.Whole, **FUNCTIONS)
        plain = self.Whole()
        plain(given["x"])
        plain.set_weights(job.initial_weights())
        plain.compile(sgd(), loss=lambda y, p: tf.reduce_mean(squared(y, p)), run_eagerly=True)
        losses = [float(plain.train_on_batch(given["x"], given["y"])) for _ in range(4)]
        for _ in range(4):
            job.train(given, 16)
        np.testing.assert_allclose(job.losses, losses, rtol=1e-5)
        expected = np.concatenate([v.numpy().ravel() for v in plain.trainable_variables])
        np.testing.assert_allclose(job.parameters()[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
        lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.5),
    ],
    ids=["momentum", "adamw", "ftrl"],
)
class TestWhatIsNotTrained:
    def ids(self, **given):
        rng = np.random.default_rng(1)
        return {"x": rng.integers(0, 20, (32, 2)), "y": rng.normal(size=32).astype(np.float32)}

    @pytest.mark.parametrize("threshold", [0, 2**30], ids=["moved", "plain"])
    def test_a_frozen_embedding_keeps_its_rows(self, new_job, optimizer, threshold):
        def model():
            ids = keras.Input((2,), dtype="int64")
            kept = [
                Embedding(3, name="ours", trainable=False),
                keras.layers.Embedding(20, 3, name="theirs", trainable=False),
            ]
            trained = Embedding(3, name="trained")
            rows = [keras.layers.Flatten()(layer(ids)) for layer in (*kept, trained)]
            return keras.Model(ids, keras.layers.Dense(1)(keras.ops.concatenate(rows, axis=-1)))

        functions = {**FUNCTIONS, "optimizer": optimizer, "model": model}
        job = new_job(self.ids(), 16, threshold=threshold, **functions)
        kept = {t.name: t.trainable for t in job.description.tables}
        moved = {} if threshold else {"theirs": False}
        assert kept == {"ours": False, "trained": True, **moved}
        minibatch = next(job.minibatches(self.ids(), 16))
        before = job.given(minibatch, training=True)
        for _ in range(3):
            job.train(self.ids(), 16)
        after = job.given(minibatch, training=True)
        for table, old, new in zip(job.backend.id_sites(), before.rows, after.rows, strict=True):
            is_equal = np.array_equal(old, new)
            assert is_equal == (not job.description.tables[table].trainable)
            assert old.any()  # with their initial values, not the middle of these
        np.testing.assert_array_equal(before.state, after.state)

    def test_what_the_loss_does_not_depend_on_keeps_its_values(self, new_job, optimizer, caplog):
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.unused = keras.layers.Dense(1, name="unused")
                self.out = keras.layers.Dense(1, name="out")
                self.rows = Embedding(1, name="rows")

            def call(self, ids):
                x = keras.ops.cast(ids, "float32")
                self.unused(x)
                return self.out(x) + 0 * keras.ops.stop_gradient(self.rows(ids))[:, 0]

        functions = {**FUNCTIONS, "optimizer": optimizer, "model": Model}
        job = new_job(self.ids(), 16, **functions)
        trainable = {v.name.split("/", 1)[1]: v.trainable for v in job.description.dense}
        assert trainable == {
            "unused/kernel": False, "unused/bias": False, "out/kernel": True, "out/bias": True,
        }  # fmt: skip
        assert "the loss does not depend on" in caplog.text
        assert "unused/kernel" in caplog.text
        assert "rows" in caplog.text
        before = job.parameters()[0]
        job.train(self.ids(), 16)
        after = job.parameters()[0]
        np.testing.assert_array_equal(before[:3], after[:3])
        assert (before[3:] != after[3:]).all()


class TestStateAtAnyStaleness:
    @staticmethod
    def model(momentum):
        def make():
            x = keras.Input((4,))
            frozen = keras.layers.BatchNormalization(trainable=False)(x)
            normed = keras.layers.BatchNormalization(momentum=momentum)(frozen)
            return keras.Model(x, keras.layers.Dense(1, trainable=False)(normed))

        return make

    def test_moving_statistics_end_as_those_of_keras_one_after_the_other(self, new_job):
        momentum = 0.99
        still = {**FUNCTIONS, "optimizer": lambda: keras.optimizers.SGD(0.0)}
        given = data(8 * 64)
        given["x"] = given["x"] * 3 + 100
        ends = []
        for staleness in (0, 16, 256):
            job = new_job(given, 8, model=self.model(momentum), **still)
            momenta = [v.momentum for v in job.description.state]
            assert momenta == [1, 1, 1, 1, momentum, momentum, 1, 1]
            late = []
            for _ in range(10):
                for minibatch in job.minibatches(given, 8):
                    late.append(job.computed(minibatch))
                    if len(late) > staleness:
                        job.push(*late.pop(0))
            for one in late:
                job.push(*one)
            ends.append(job.parameters()[1])
        plain = self.model(momentum)()
        plain.set_weights(job.initial_weights())
        for _ in range(10):
            for start in range(0, 8 * 64, 8):
                plain(given["x"][start : start + 8], training=True)
        expected = np.concatenate([v.numpy().ravel() for v in plain.non_trainable_variables])
        for found in ends:
            np.testing.assert_allclose(found, expected, rtol=1e-4)


class Layer(keras.layers.Layer):
    """Keeps one variable, which `rule(old, new)` changes in training."""

    def __init__(self, rule, dtype="float32", **kwargs):
        super().__init__(**kwargs)
        self.rule = rule
        self.of = dtype

    def build(self, shape):
        self.kept = self.add_weight(
            shape=(4,) if self.of == "float32" else (), dtype=self.of, initializer="zeros",
            trainable=False, name="kept",
        )  # fmt: skip

    def call(self, x, training=False):
        if training:
            new = keras.ops.mean(x, axis=0) if self.of == "float32" else 3
            self.kept.assign(self.rule(self.kept.value, new))
        return x


def around(*layers):
    def model():
        x = keras.Input((4,))
        y = x
        for layer in layers:
            y = layer()(y)
        return keras.Model(x, keras.layers.Dense(1)(y))

    return model


class Annealed(keras.layers.Layer):
    """Divides by the number of steps of the newest of some optimizers."""

    def __init__(self, made):
        super().__init__()
        self.newest = lambda: made[-1]

    def call(self, x, training=False):
        return x / (1 + keras.ops.cast(self.newest().iterations, x.dtype)) if training else x


class TestStateOfOtherRules:
    @pytest.mark.parametrize(
        ("rule", "dtype", "momentum"),
        [
            (lambda old, new: old + new, "float32", 1),
            (lambda old, new: new, "float32", 0),
            (lambda old, new: old - 0.25 * (old - new), "float32", 0.75),
            (lambda old, new: old + keras.ops.stop_gradient(0.1 * (new - old)), "float32", 0.9),
            (lambda old, new: old + 1, "int32", 1),
            (lambda old, new: old * 0 + new, "int64", 0),
            (lambda old, new: new > 2, "bool", 0),
        ],
        ids=["sum", "last", "average", "without a gradient", "count", "last count", "flag"],
    )
    def test_sums_last_values_and_averages_have_their_momentum(
        self, new_job, rule, dtype, momentum
    ):
        job = new_job(data(), 16, model=around(lambda: Layer(rule, dtype)), **FUNCTIONS)
        (kept,) = job.description.state
        assert kept.momentum == pytest.approx(momentum)
        job.train(data(), 16)
        expected = np.zeros(4 if dtype == "float32" else 1)
        for start in (0, 16):
            mean = data()["x"][start : start + 16].mean(0) if dtype == "float32" else 3
            expected = rule(expected, mean) + np.zeros_like(expected)
        np.testing.assert_allclose(job.parameters()[1], expected, rtol=1e-5, atol=1e-6)

    def test_what_is_assigned_in_evaluations_too_is_told(self, new_job, caplog):
        class Counter(Layer):
            def call(self, x, training=False):
                return super().call(x, training=True)

        made = around(lambda: Counter(lambda old, new: old + new, "int32", name="counter"))
        new_job(data(), 16, model=made, **FUNCTIONS).evaluate(data(), 16)
        assert "call() assigns counter/kept in evaluations and predictions too" in caplog.text

    @pytest.mark.parametrize(
        ("rule", "dtype"),
        [
            (lambda old, new: keras.ops.maximum(old, new), "float32"),
            (lambda old, new: 2 * old + new, "float32"),
            (lambda old, new: new - 0.5 * old, "float32"),
            (lambda old, new: keras.ops.tanh(old + new), "float32"),
            (lambda old, new: keras.ops.roll(old, 1), "float32"),
            (lambda old, new: keras.ops.floor(old) + new, "float32"),
            (lambda old, new: 2 * old + 1, "int32"),
            (lambda old, new: (old + 1) % 1000, "int32"),
            (lambda old, new: keras.ops.minimum(old + 1, 1000), "int32"),
            (lambda old, new: keras.ops.logical_not(old), "bool"),
        ],
        ids=["max", "grows", "swings", "recurrent", "shifted", "steps", "doubled",
             "cyclic", "up to a limit", "flips"],
    )  # fmt: skip
    def test_another_rule_is_refused(self, new_job, rule, dtype):
        with pytest.raises(ModelError, match="variable 'layer/kept' from the old one in a way"):
            new_job(data(), 16, model=around(lambda: Layer(rule, dtype, name="layer")), **FUNCTIONS)

    def test_the_maximum_of_all_is_refused_though_it_has_one_element(self, new_job):
        class Largest(keras.layers.Layer):
            def build(self, shape):
                self.kept = self.add_weight(name="kept", initializer="zeros", trainable=False)

            def call(self, x, training=False):
                if training:
                    self.kept.assign(keras.ops.maximum(self.kept, keras.ops.max(x)))
                return x

        model = around(lambda: Largest(name="layer"))
        with pytest.raises(ModelError, match="variable 'layer/kept' from the old one"):
            new_job(data(), 16, model=model, **FUNCTIONS)

    def test_statistics_of_what_statistics_have_normalised_are_no_other_rule(self, new_job):
        class Normed(Layer):
            def call(self, x, training=False):
                x = super().call(x, training=training)
                return x - self.kept

        layers = [lambda: Normed(lambda old, new: 0.5 * old + 0.5 * new),
                  lambda: keras.layers.BatchNormalization()]  # fmt: skip
        job = new_job(data(), 16, model=around(*layers), **FUNCTIONS)
        found = [v.momentum for v in job.description.state]
        np.testing.assert_allclose(found, [0.5, 0.99, 0.99])

    @pytest.mark.parametrize(
        ("layer", "says"),
        [
            (
                lambda: keras.layers.SpectralNormalization(keras.layers.Dense(4)),
                r"assigns the variable .*kernel.*SpectralNormalization: use its inner layer alone",
            ),
            (lambda: Scores(), "updates the metric 'scores'.*eval_metrics_fn"),
            (lambda: Hidden(), "assigns the variable .*not among the variables of model"),
        ],
        ids=["spectral normalization", "metric", "variable outside the model"],
    )
    def test_what_would_be_lost_is_refused(self, new_job, layer, says):
        with pytest.raises(ModelError, match=says):
            new_job(data(), 16, model=around(layer), **FUNCTIONS)

    def test_a_stateful_rnn_is_refused(self, new_job):
        def model():
            x = keras.Input((4,), batch_size=16)
            steps = keras.layers.Reshape((4, 1))(x)
            return keras.Model(x, keras.layers.Dense(1)(keras.layers.GRU(2, stateful=True)(steps)))

        with pytest.raises(ModelError, match="is stateful: say stateful=False"):
            new_job(data(), 16, model=model, **FUNCTIONS)

    def test_an_adapted_normalization_layer_is_as_adapted(self, new_job):
        def model():
            x = keras.Input((4,))
            adapted = keras.layers.Normalization()
            adapted.adapt(data()["x"] * 2 + 3)
            return keras.Model(x, keras.layers.Dense(1)(adapted(x)))

        job = new_job(data(), 16, model=model, **FUNCTIONS)
        assert {v.momentum for v in job.description.state} == {1.0}
        before = job.parameters()[1]
        job.train(data(), 16)
        np.testing.assert_array_equal(job.parameters()[1], before)
        np.testing.assert_allclose(before[:4], (data()["x"] * 2 + 3).mean(0), rtol=1e-4)


class Scores(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.scores = keras.metrics.Mean(name="scores")

    def call(self, x):
        self.scores.update_state(x)
        return x


class Hidden(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self._hidden = [lambda: None]
        self._hidden[0].variable = keras.Variable(0.0, trainable=False)

    def call(self, x):
        self._hidden[0].variable.assign(1.0)
        return x


def test_that_a_model_is_not_trained_at_all_is_said(new_job):
    def frozen():
        model = dense()
        model.trainable = False
        return model

    job = new_job(data(), 16, model=frozen, **FUNCTIONS)
    assert "no variable that is trained" in job.backend._spec.notes[0]


class TestHalfPrecision:
    @staticmethod
    def model(policy, factor=1.0):
        def make():
            x = keras.Input((4,))
            rows = keras.layers.Dense(8, dtype=policy)(x) * factor
            return keras.Model(x, keras.layers.Dense(1, dtype="float32")(rows))

        return make

    @pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
    def test_it_trains_as_float32_does(self, new_job, policy):
        jobs = [new_job(data(), 16, model=self.model(p), **FUNCTIONS) for p in (policy, "float32")]
        for _ in range(10):
            half, whole = (job.train(data(), 16) for job in jobs)
        assert half[-1] < 0.1 * half[0]
        np.testing.assert_allclose(half, whole, rtol=0.1, atol=0.02)

    def test_that_float64_is_kept_in_float32_is_said(self, new_job):
        notes = [
            new_job(data(), 16, model=self.model(p), **FUNCTIONS).backend._spec.notes
            for p in ("float64", "float32")
        ]
        assert "dense/kernel, dense/bias: variables of float64 are kept" in notes[0][0]
        assert notes[1] == []

    def test_outputs_of_bfloat16_are_predicted_and_measured_as_float32(self, new_job):
        def model():
            x = keras.Input((4,))
            return keras.Model(x, keras.layers.Dense(1, dtype="mixed_bfloat16")(x))

        error = {"error": lambda y, p: tf.abs(tf.cast(y, p.dtype) - p)}
        functions = {**FUNCTIONS, "eval_metrics_fn": lambda: error}
        job = new_job(data(), 16, model=model, **functions)
        minibatch, values = next(job.minibatches(data(), 16)), job.backend.initial_values()
        assert job.backend.predict_step(minibatch, [], *values).dtype == np.float32
        job.backend.new_metrics()
        job.backend.evaluate_step(minibatch, [], *values)
        assert job.backend.metric_results(job.backend.metric_states())["error"] > 0

    def test_gradients_too_small_for_float16_arrive(self, new_job):
        """Without a scale they are 0: the smallest number of float16 is 6e-8."""
        small = {**FUNCTIONS, "loss": lambda y, p: 1e-8 * tf.reduce_mean(squared(y, p))}
        jobs = [
            new_job(data(), 16, model=self.model(p), **small) for p in ("mixed_float16", "float32")
        ]
        half, whole = (job.step(next(job.minibatches(data(), 16))).dense_grad for job in jobs)
        assert np.abs(whole).max() < 1e-7
        np.testing.assert_allclose(half, whole, rtol=0.02, atol=1e-10)

    def test_a_minibatch_whose_gradient_overflows_is_computed_again_with_half_the_scale(
        self, new_job
    ):
        large = {**FUNCTIONS, "loss": lambda y, p: 1e3 * tf.reduce_mean(squared(y, p))}
        jobs = [
            new_job(data(), 16, model=self.model(p), **large) for p in ("mixed_float16", "float32")
        ]
        half, whole = (job.step(next(job.minibatches(data(), 16))).dense_grad for job in jobs)
        np.testing.assert_allclose(half, whole, rtol=0.02, atol=1)
        assert jobs[0].backend._scale.value < 2**15

    def test_a_loss_that_is_not_finite_is_given_back_as_it_is(self, new_job):
        nan = {**FUNCTIONS, "loss": lambda y, p: tf.reduce_mean(p) / 0.0}
        job = new_job(data(), 16, model=self.model("mixed_float16"), **nan)
        assert not np.isfinite(job.step(next(job.minibatches(data(), 16))).loss)

    def test_a_loss_scale_optimizer_gives_its_scale_and_its_inner_optimizer(self, new_job):
        def optimizer():
            return keras.optimizers.LossScaleOptimizer(
                keras.optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=2
            )

        job = new_job(data(), 16, model=dense, **{**FUNCTIONS, "optimizer": optimizer})
        plain = new_job(
            data(),
            16,
            model=dense,
            **{**FUNCTIONS, "optimizer": lambda: keras.optimizers.Adam(0.01)},
        )
        assert job.description.optimizer.kind == "adam"
        assert job.backend.learning_rate(0) == pytest.approx(0.01)
        np.testing.assert_allclose(job.train(data(), 16), plain.train(data(), 16), rtol=1e-6)
        assert job.backend._scale.value == 16.0


class TestWhatUpdatesChange:
    """Those who apply the updates have the optimizer's numbers; a worker's stand still."""

    def job(self, new_job, rate=0.1, layers=(), reads=None, **functions):
        made = []

        def optimizer():
            made.append(keras.optimizers.SGD(rate))
            return made[-1]

        def loss(labels, predictions):
            factor = 1.0 if reads is None else keras.ops.cast(reads(made[-1]), "float32")
            return factor * squared(labels, predictions)

        model = around(*(lambda layer=layer: layer(made) for layer in layers))
        functions = {"model": model, "loss": loss, "optimizer": optimizer, **functions}
        return new_job(data(), 16, feed=feed, **functions)

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"reads": lambda optimizer: optimizer.iterations}, r"SGD\.iterations"),
            ({"layers": [Annealed]}, r"SGD\.iterations"),
            (
                {
                    "reads": lambda optimizer: optimizer.learning_rate,
                    "rate": keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5),
                },
                r"SGD\.iterations",
            ),
            (
                {"reads": lambda optimizer: optimizer.learning_rate, "callbacks": list},
                r"SGD\.learning_rate",
            ),
        ],
        ids=["steps in the loss", "steps in a layer", "schedule", "rate that callbacks set"],
    )
    def test_what_updates_change_is_refused_by_name(self, new_job, given, says):
        with pytest.raises(ModelError, match=f"reads {says}.*self.steps"):
            self.job(new_job, **given)

    def test_a_rate_that_nothing_changes_may_be_read(self, new_job):
        reading = self.job(new_job, reads=lambda optimizer: optimizer.learning_rate)
        plain = self.job(new_job)
        found = [job.train(data(), 16)[0] for job in (reading, plain)]
        assert found[0] == pytest.approx(0.1 * found[1])


class TestWhatIsCalledAsByFit:
    @pytest.mark.parametrize("takes_training", [False, True])
    def test_layers_of_a_model_without_training_in_its_call_rest_and_are_told(
        self, new_job, takes_training, caplog
    ):
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.norm = keras.layers.BatchNormalization(name="norm")
                self.out = keras.layers.Dense(1)

        def call(self, x):
            return self.out(self.norm(x))

        def call_with_training(self, x, training=None):
            return self.out(self.norm(x))

        Net.call = call_with_training if takes_training else call
        job = new_job(data(), 16, model=Net, **FUNCTIONS)
        job.train(data(), 16)
        _, state = job.parameters()
        model = Net()
        model(data()["x"][:16])
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        for part in (slice(16), slice(16, 32)):
            model.train_on_batch(data()["x"][part], data()["y"][part, None])
        expected = [np.ravel(v) for v in model.norm.non_trainable_variables]
        np.testing.assert_allclose(state, np.concatenate(expected), rtol=1e-4, atol=1e-5)
        assert ("norm. Write call(self, inputs, training=None)" in caplog.text) != takes_training
