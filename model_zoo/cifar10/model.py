"""A small residual network for the ten classes of CIFAR-10.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2. The network has
three stages of `DEPTH` blocks with 16, 32 and 64 filters. DEPTH = 3 is ResNet-20, with 0.27 million
parameters.
"""

import keras
import tensorflow as tf

from elasticdl import Mode

SIDE = 32
FILTERS = (16, 32, 64)
DECAY = 1e-4


def custom_model(depth=3):
    """Return the network: images -> logits of ten classes.

    Args:
        depth: Blocks of a stage; there are 6 * depth + 2 layers.
    """
    image = keras.Input((SIDE, SIDE, 3), name="image")
    x = _convolution(FILTERS[0])(image)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    for stage, filters in enumerate(FILTERS):
        for block in range(depth):
            x = _block(x, filters, strides=2 if stage and not block else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model({"image": image}, keras.layers.Dense(10)(x), name="resnet")


def _block(x, filters, strides):
    short = x
    if strides > 1:  # the paper's option A has no parameters: fewer pixels, and zero channels
        short = keras.layers.AveragePooling2D(1, strides)(x)
        short = keras.ops.pad(short, [[0, 0], [0, 0], [0, 0], [0, filters - x.shape[-1]]])
    y = _convolution(filters, strides)(x)
    y = keras.layers.ReLU()(keras.layers.BatchNormalization()(y))
    y = keras.layers.BatchNormalization()(_convolution(filters)(y))
    return keras.layers.ReLU()(y + short)


def _convolution(filters, strides=1):
    return keras.layers.Conv2D(
        filters,
        3,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(DECAY),
    )


def loss(labels, predictions):
    """Return the mean cross-entropy."""
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.cast(tf.reshape(labels, [-1]), tf.int64), predictions
        )
    )


def optimizer(lr=0.1):
    """Return SGD with momentum."""
    return keras.optimizers.SGD(lr, momentum=0.9)


def feed(dataset, mode, metadata):
    """Decode the images of a folder of images; in training they are flipped and shifted."""

    def parse(row):
        image = tf.io.decode_image(row["image"], channels=3, expand_animations=False)
        image = tf.ensure_shape(image, (SIDE, SIDE, 3))
        image = (tf.cast(image, tf.float32) - 127.5) / 64.0
        if mode == Mode.PREDICTION:
            return {"image": image}
        if mode == Mode.TRAINING:
            image = _augmented(image, row["path"])
        return {"image": image}, row["label"][None]

    dataset = dataset.map(parse)
    return dataset.shuffle(1024) if mode == Mode.TRAINING else dataset


def _augmented(image, path):
    """Flip an image and shift it by up to 4 pixels. Its name decides the flip and the shift.

    So an image is the same if its minibatch is trained again, and `feed` may be compiled.
    """
    seed = tf.stack([tf.strings.to_hash_bucket_fast(path, 2**31 - 1), 0])
    image = tf.image.stateless_random_flip_left_right(image, seed)
    padded = tf.pad(image, [[4, 4], [4, 4], [0, 0]])
    return tf.image.stateless_random_crop(padded, (SIDE, SIDE, 3), seed)


def eval_metrics_fn():
    """Return the share of correctly classified images."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
