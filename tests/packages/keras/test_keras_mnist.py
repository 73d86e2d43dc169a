"""The MNIST model as users of TensorFlow write it, on records that they write."""

import numpy as np
import pytest
import tensorflow as tf

from elasticdl import Mode

pytestmark = pytest.mark.keras


def example(**features):
    def feature(value):
        value = np.ravel(value)
        if value.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=value))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value))

    encoded = {name: feature(value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=encoded)).SerializeToString()


class TestMnistAsUsersWroteIt:
    @staticmethod
    def custom_model():
        inputs = tf.keras.Input(shape=(28, 28), name="image")
        x = tf.keras.layers.Reshape((28, 28, 1))(inputs)
        x = tf.keras.layers.Conv2D(32, kernel_size=(3, 3), activation="relu")(x)
        x = tf.keras.layers.Conv2D(64, kernel_size=(3, 3), activation="relu")(x)
        x = tf.keras.layers.BatchNormalization()(x)
        x = tf.keras.layers.MaxPooling2D(pool_size=(2, 2))(x)
        x = tf.keras.layers.Dropout(0.25)(x)
        x = tf.keras.layers.Flatten()(x)
        outputs = tf.keras.layers.Dense(10)(x)
        return tf.keras.Model(inputs=inputs, outputs=outputs, name="mnist_model")

    @staticmethod
    def loss(labels, predictions):
        labels = tf.reshape(labels, [-1])
        return tf.reduce_mean(
            input_tensor=tf.nn.sparse_softmax_cross_entropy_with_logits(
                logits=predictions, labels=labels
            )
        )

    @staticmethod
    def optimizer(lr=0.1):
        return tf.optimizers.SGD(lr)

    @staticmethod
    def feed(dataset, mode, _):
        def _parse_data(record):
            if mode == Mode.PREDICTION:
                feature_description = {"image": tf.io.FixedLenFeature([28, 28], tf.float32)}
            else:
                feature_description = {
                    "image": tf.io.FixedLenFeature([28, 28], tf.float32),
                    "label": tf.io.FixedLenFeature([1], tf.int64),
                }
            r = tf.io.parse_single_example(record, feature_description)
            features = {"image": tf.math.divide(tf.cast(r["image"], tf.float32), 255.0)}
            if mode == Mode.PREDICTION:
                return features
            return features, tf.cast(r["label"], tf.int32)

        dataset = dataset.map(_parse_data)
        if mode == Mode.TRAINING:
            dataset = dataset.shuffle(buffer_size=1024)
        return dataset

    @staticmethod
    def eval_metrics_fn():
        return {
            "accuracy": lambda labels, predictions: tf.equal(
                tf.argmax(predictions, 1, output_type=tf.int32),
                tf.cast(tf.reshape(labels, [-1]), tf.int32),
            )
        }

    @pytest.fixture
    def digits(self):
        """Ten patterns with noise: easy to tell apart, so a few steps show learning."""
        rng = np.random.default_rng(0)
        patterns = rng.uniform(0, 255, (10, 28, 28))
        labels = rng.integers(0, 10, 96)
        images = patterns[labels] + rng.normal(0, 10, (96, 28, 28))
        return [
            example(image=i.astype(np.float32), label=int(n))
            for i, n in zip(images, labels, strict=True)
        ]

    def functions(self):
        return {
            "model": self.custom_model,
            "loss": self.loss,
            "optimizer": self.optimizer,
            "feed": self.feed,
            "eval_metrics_fn": self.eval_metrics_fn,
        }

    def test_it_learns_and_its_moving_statistics_are_those_of_keras(
        self, new_job, digits, tmp_path
    ):
        job = new_job(digits, 32, **self.functions())
        plain = self.custom_model()
        plain.set_weights(job.initial_weights())

        names = [v.name for v in job.description.state]
        assert [n.rsplit("/")[-1] for n in names] == ["moving_mean", "moving_variance"]
        for seed in range(6):
            job.train(digits, 32, seed=seed)
        assert job.losses[-1] < 0.3 * job.losses[0]

        # One minibatch more, through Keras' own layers up to the batch norm.
        before, state = job.parameters()
        batch = next(
            job.backend.minibatches(iter(self.as_chunks(digits)), Mode.TRAINING, 32, seed=9)
        )
        job.step(batch)
        _, after = job.parameters()
        self.load(plain, job, before, state)
        plain(batch.features["image"], training=True)
        expected = np.concatenate([v.numpy().ravel() for v in plain.layers[4].weights[2:]])
        np.testing.assert_allclose(after, expected, rtol=1e-4, atol=1e-5)

        # Evaluation, prediction and export read them as Keras does.
        self.load(plain, job, *job.parameters())
        images = np.stack([self.image(d) for d in digits]) / np.float32(255)
        expected = plain(images, training=False).numpy()
        predictions = job.predict(digits, 40)
        np.testing.assert_allclose(predictions, expected, rtol=1e-3, atol=1e-3)
        labels = np.array([self.label(d) for d in digits])
        accuracy = np.mean(expected.argmax(1) == labels)
        assert job.evaluate(digits, 32)["accuracy"] == pytest.approx(accuracy)
        job.export(tmp_path)
        loaded = tf.saved_model.load(str(tmp_path))
        served = loaded.serve({"image": images})
        np.testing.assert_allclose(served, expected, rtol=1e-3, atol=1e-3)

    @staticmethod
    def as_chunks(digits):
        from elasticdl.data.base import Records

        return [Records(0, values=digits)]

    @staticmethod
    def image(record):
        values = tf.train.Example.FromString(record).features.feature["image"].float_list.value
        return np.array(values, np.float32).reshape(28, 28)

    @staticmethod
    def label(record):
        return tf.train.Example.FromString(record).features.feature["label"].int64_list.value[0]

    @staticmethod
    def load(plain, job, dense, state):
        for variables, flat, described in (
            (plain.trainable_variables, dense, job.description.dense),
            (
                [v for v in plain.non_trainable_variables if "moving" in v.name],
                state,
                job.description.state,
            ),
        ):
            for variable, place in zip(variables, described, strict=True):
                size = int(np.prod(place.shape, dtype=int))
                variable.assign(flat[place.offset : place.offset + size].reshape(place.shape))
