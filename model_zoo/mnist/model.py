"""A small convolutional network for MNIST digits."""

import keras
import tensorflow as tf

from elasticdl import Mode


def custom_model():
    """Return the network: images -> logits of ten digits."""
    inputs = keras.Input((28, 28), name="image")
    x = keras.layers.Reshape((28, 28, 1))(inputs)
    x = keras.layers.Conv2D(32, kernel_size=(3, 3), activation="relu")(x)
    x = keras.layers.Conv2D(64, kernel_size=(3, 3), activation="relu")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.MaxPooling2D(pool_size=(2, 2))(x)
    x = keras.layers.Dropout(0.25)(x)
    x = keras.layers.Flatten()(x)
    outputs = keras.layers.Dense(10)(x)
    return keras.Model(inputs=inputs, outputs=outputs, name="mnist_model")


def loss(labels, predictions):
    """Return the mean cross-entropy."""
    labels = tf.reshape(labels, [-1])
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(logits=predictions, labels=labels)
    )


def optimizer(lr=0.1):
    """Return plain SGD."""
    return tf.optimizers.SGD(lr)


def feed(dataset, mode, metadata):
    """Parse a `tf.train.Example` a record: pixels 0 to 255, and a digit except in predictions."""

    def _parse_data(record):
        feature_description = {"image": tf.io.FixedLenFeature([28, 28], tf.float32)}
        if mode != Mode.PREDICTION:
            feature_description["label"] = tf.io.FixedLenFeature([1], tf.int64)
        r = tf.io.parse_single_example(record, feature_description)
        features = {"image": tf.math.divide(tf.cast(r["image"], tf.float32), 255.0)}
        if mode == Mode.PREDICTION:
            return features
        return features, tf.cast(r["label"], tf.int32)

    dataset = dataset.map(_parse_data)
    if mode == Mode.TRAINING:
        dataset = dataset.shuffle(buffer_size=1024)
    return dataset


def eval_metrics_fn():
    """Return the share of correctly classified digits."""
    return {
        "accuracy": lambda labels, predictions: tf.equal(
            tf.argmax(predictions, 1, output_type=tf.int32),
            tf.cast(tf.reshape(labels, [-1]), tf.int32),
        )
    }
