"""What a model file writes means what it means to Keras, or is refused before training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.errors import ModelError

pytestmark = pytest.mark.keras


def feed(dataset, mode, metadata):
    return dataset.map(lambda r: (r["x"], r["y"]))


def squared(labels, predictions):
    return tf.square(tf.reshape(labels, [-1]) - tf.reshape(predictions, [-1]))


def sgd():
    return keras.optimizers.SGD(0.1)


def data(n=32, width=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, width)).astype(np.float32)
    return {"x": x, "y": x.sum(1) + 1}


FUNCTIONS = {"loss": squared, "optimizer": sgd, "feed": feed}


def dense():
    x = keras.Input((4,))
    return keras.Model(x, keras.layers.Dense(1)(x))


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
        plain.set_weights(job.backend._placed.model.get_weights())
        plain.compile(sgd(), loss=lambda y, p: tf.reduce_mean(squared(y, p)), run_eagerly=True)
        losses = [float(plain.train_on_batch(given["x"], given["y"])) for _ in range(4)]
        for _ in range(4):
            job.train(given, 16)
        np.testing.assert_allclose(job.losses, losses, rtol=1e-5)
        expected = np.concatenate([v.numpy().ravel() for v in plain.trainable_variables])
        np.testing.assert_allclose(job.parameters()[0], expected, rtol=1e-5, atol=1e-6)
