"""Draws model files over what Keras offers. Each is a text that a person can save and run."""

from dataclasses import dataclass

from hypothesis import strategies as st

NUM_IDS, WIDTH, CLASSES = 12, 5, 3

_HEAD = """\
import functools

import keras
import tensorflow as tf
from keras import layers, ops

calls = 0


class Penalty(layers.Layer):
    def call(self, x):
        self.add_loss(0.05 * ops.mean(ops.square(x)))
        return x


class Counter(layers.Layer):
    def build(self, shape):
        self.steps = self.add_weight(name="steps", initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.steps.assign_add(1.0)
        return x / (1 + 0.1 * self.steps)


class Moving(layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(
            name="mean", shape=(shape[-1],), initializer="zeros", trainable=False
        )

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.stop_gradient(ops.mean(x, 0)))
        return x - self.mean


class Tied(layers.Layer):
    def __init__(self, of, **kwargs):
        super().__init__(**kwargs)
        self.of = of

    def call(self, x):
        return ops.matmul(x, ops.transpose(self.of.kernel))


class Own(layers.Layer):
    def __init__(self, size, **kwargs):
        super().__init__(**kwargs)
        self.inner = layers.Dense(size, name="inner")

    def build(self, shape):
        self.scale = self.add_weight(
            name="scale", shape=(shape[-1],), initializer="ones", regularizer="l2"
        )
        self.inner.build(shape)

    def call(self, x):
        return ops.tanh(self.inner(x * self.scale))


class PythonCounter(layers.Layer):
    calls = 0

    def call(self, x):
        self.calls += 1
        return x / (1 + 0.1 * self.calls)


class GlobalCounter(layers.Layer):
    def call(self, x):
        global calls
        calls += 1
        return x / (1 + 0.1 * calls)


def inner(size):
    given = keras.Input((size,))
    hidden = layers.Dense(6, activation="relu")(given)
    return keras.Model(given, layers.Dense(size)(hidden))

"""

# Name: (layers by the name of their attribute, lines of the call: h has `size` columns before and
# after, and `f` is the dict of features).
BLOCKS = {
    "dense": ({"": 'layers.Dense({size}, activation="tanh")'}, "h = {n}(h)"),
    "regularized": (
        {"": 'layers.Dense({size}, kernel_regularizer="l2", bias_regularizer="l1")'},
        "h = ops.tanh({n}(h))",
    ),
    "activity": (
        {"": "layers.Dense({size}, activity_regularizer=keras.regularizers.L2(0.01))"},
        "h = ops.tanh({n}(h))",
    ),
    "sequential": (
        {
            "": "keras.Sequential([layers.Dense(6), keras.Sequential([layers.ReLU(), "
            "layers.Dense({size})]), layers.Dropout(0.0)])"
        },
        "h = h + {n}(h)",
    ),
    "nested": ({"": "inner({size})"}, "h = h + {n}(h)"),
    "layer norm": ({"": "layers.LayerNormalization()"}, "h = {n}(h)"),
    "batch norm": ({"": "layers.BatchNormalization(momentum=0.7)"}, "h = {n}(h)"),
    "batch norm without scale": (
        {"": "layers.BatchNormalization(momentum=0.9, scale=False, center=False)"},
        "h = {n}(h)",
    ),
    "unit norm": ({"": "layers.UnitNormalization()"}, "h = h + {n}(h)"),
    "fixed norm": ({"": "layers.Normalization(mean=0.2, variance=2.0)"}, "h = {n}(h)"),
    "shared": ({"": "layers.Dense({size})"}, "h = ops.tanh({n}(ops.tanh({n}(h))))"),
    "frozen": ({"": "layers.Dense({size}, trainable=False)"}, "h = h + ops.tanh({n}(h))"),
    "constrained": (
        {"": "layers.Dense({size}, kernel_constraint=keras.constraints.MaxNorm(1.0))"},
        "h = ops.tanh({n}(h))",
    ),
    "non-negative": (
        {"": "layers.Dense({size}, kernel_constraint=keras.constraints.NonNeg())"},
        "h = ops.tanh({n}(h))",
    ),
    "tied": (
        {"": "layers.Dense(6)", "_back": "Tied({n})"},
        "h = h + {n}_back(ops.relu({n}(h)))",
    ),
    "own": ({"": "Own({size})"}, "h = h + {n}(h)"),
    "penalty": ({"": "Penalty()"}, "h = {n}(h)"),
    "counter": ({"": "Counter()"}, "h = {n}(h)"),
    "moving": ({"": "Moving()"}, "h = {n}(h)"),
    "prelu": ({"": "layers.PReLU()"}, "h = {n}(h)"),
    "lambda": ({"": "layers.Lambda(lambda x: 0.5 * x)"}, "h = h - {n}(h)"),
    "einsum": (
        {"": 'layers.EinsumDense("ab,bc->ac", output_shape=({size},), bias_axes="c")'},
        "h = ops.tanh({n}(h))",
    ),
    "gru": (
        {"": "layers.GRU(3)", "_out": "layers.Dense({size})"},
        'h = h + {n}_out({n}(ops.expand_dims(f["x"], -1)))',
    ),
    "masked": (
        {
            "_mask": "layers.Masking(0.0)", "_rnn": "layers.SimpleRNN(3)",
            "_out": "layers.Dense({size})",
        },
        'h = h + {n}_out({n}_rnn({n}_mask(ops.relu(ops.expand_dims(f["x"], -1)))))',
    ),
    "attention": (
        {"": "layers.MultiHeadAttention(2, 3)", "_flat": "layers.Flatten()",
         "_out": "layers.Dense({size})"},
        "h = h + {n}_out({n}_flat({n}(e, e)))",
    ),
    "pooled": (
        {"": "layers.GlobalAveragePooling1D()", "_out": "layers.Dense({size})"},
        "h = h + {n}_out({n}(e))",
    ),
    "distributed": (
        {"": "layers.TimeDistributed(layers.Dense(3))", "_flat": "layers.Flatten()",
         "_out": "layers.Dense({size})"},
        "h = h + {n}_out({n}_flat({n}(e)))",
    ),
    "table again": (
        {"_out": "layers.Dense({size})"},
        'h = h + {n}_out(ids(f["kind"]))',
    ),
    "crossed": (
        {"": "layers.CategoryEncoding(3)", "_out": "layers.Dense({size})"},
        'h = h + {n}_out({n}(ops.expand_dims(f["kind"], -1)))',
    ),
    "python counter": ({"": "PythonCounter()"}, "h = {n}(h)"),
    "global counter": ({"": "GlobalCounter()"}, "h = {n}(h)"),
    "spectral": (
        {"": "layers.SpectralNormalization(layers.Dense({size}))"},
        "h = ops.tanh({n}(h))",
    ),
}  # fmt: skip
REFUSED = {
    "python counter": r"{n}\.calls",
    "global counter": r"\.py: calls",
    "spectral": "SpectralNormalization",
    "constrained": "MaxNorm",
}
# What two workers with parts of a minibatch compute otherwise than one with the whole.
_OF_THE_WHOLE = {"activity", "batch norm", "batch norm without scale", "counter", "moving"}

# Name: (text, whether it takes sample weights).
REGRESSION = {
    "function": (
        "def loss(labels, predictions):\n    return ops.mean(ops.square(labels - predictions), -1)",
        True,
    ),
    "scalar": (
        "def loss(labels, predictions):\n"
        "    return ops.mean(ops.abs(labels - predictions)) + 0.01 * ops.mean(predictions**2)",
        False,
    ),
    "name": ('loss = "mse"', True),
    "object": ("loss = keras.losses.Huber(delta=0.5)", True),
    "list": ('loss = ["mae"]', True),
    "of keras": ("loss = keras.losses.log_cosh", True),
    "partial": ("loss = functools.partial(keras.losses.huber, delta=0.7)", True),
    "lambda": ("loss = lambda y, p: ops.mean(ops.abs(y - p), -1)", True),
    "of TensorFlow": (
        "@tf.function\ndef loss(labels, predictions):\n"
        "    return tf.reduce_mean(tf.math.squared_difference(labels, predictions), -1)",
        True,
    ),
    "class": (
        "class Scaled(keras.losses.Loss):\n"
        "    def call(self, y_true, y_pred):\n"
        "        return ops.mean(ops.square(y_true - y_pred) * (1 + ops.abs(y_true)), -1)\n\n\n"
        'loss = Scaled(name="scaled")',
        True,
    ),
    "reads": (
        "def loss(labels, predictions):\n"
        "    penalty = 0.1 * ops.sum(ops.square(made[-1].get_layer('out').kernel))\n"
        "    return ops.mean(ops.square(labels - predictions), -1) + penalty",
        True,
    ),
}
CLASSIFICATION = {
    "object": ("loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)", True),
    "function": (
        "def loss(labels, predictions):\n"
        "    return keras.losses.sparse_categorical_crossentropy(labels, predictions, True)",
        True,
    ),
    "focal": (
        "def loss(labels, predictions):\n"
        f"    hot = ops.one_hot(ops.cast(ops.reshape(labels, [-1]), 'int32'), {CLASSES})\n"
        "    return keras.losses.categorical_focal_crossentropy(hot, ops.softmax(predictions))",
        True,
    ),
    "of TensorFlow": (
        "def loss(labels, predictions):\n"
        "    labels = tf.cast(tf.reshape(labels, [-1]), tf.int64)\n"
        "    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, predictions)",
        True,
    ),
}
TWO = {
    "dict": ('loss = {"out": "mse", "other": keras.losses.Huber()}', True),
    "weighed": (
        'loss = {"out": "mse", "other": "mae"}\nloss_weights = {"out": 1.0, "other": 0.3}',
        True,
    ),
}
RATES = [
    "0.02",
    "keras.optimizers.schedules.ExponentialDecay(0.03, 4, 0.8)",
    "keras.optimizers.schedules.CosineDecay(0.03, 20)",
    "keras.optimizers.schedules.PiecewiseConstantDecay([3, 7], [0.03, 0.02, 0.01])",
]
OPTIMIZERS = [
    "SGD({r}{c})",
    "SGD({r}, momentum=0.9, nesterov=True{c})",
    "SGD({r}, momentum=0.5, weight_decay=0.01{c})",
    "Adam({r}, epsilon=1e-3, beta_1=0.8{c})",
    "Adam({r}, epsilon=1e-3, amsgrad=True{c})",
    "AdamW({r}, epsilon=1e-3, weight_decay=0.1{c})",
    "Adagrad({r}, initial_accumulator_value=0.2{c})",
    "Adamax({r}, epsilon=1e-3{c})",
    "Nadam({r}, epsilon=1e-3{c})",
    "RMSprop({r}, epsilon=1e-3, momentum=0.5{c})",
    "RMSprop({r}, epsilon=1e-3, centered=True{c})",
    "Ftrl({r}, l2_regularization_strength=0.01{c})",
    "Adadelta({r}, epsilon=1e-3{c})",
]
CLIPS = ["", ", clipnorm=0.3", ", clipvalue=0.05", ", global_clipnorm=0.5"]
KINDS = ["regression", "regression", "classification", "two", "sequence"]
METRICS = {
    "sequence": '["mae", mean]',
    "regression": '["mae", keras.metrics.RootMeanSquaredError(name="rmse"), mean]',
    "classification": '["accuracy", mean]',
    "two": '{"out": ["mae"], "other": [keras.metrics.MeanSquaredError(name="mse")]}',
}


@dataclass(frozen=True)
class File:
    """A model file.

    is_halved: two parts of a minibatch make together what the whole makes. refused: a pattern of
    what the job has to say, or "".
    """

    text: str
    is_halved: bool
    refused: str


def _indented(lines, by):
    return "\n".join(" " * by + part for line in lines for part in line.split("\n"))


@st.composite
def files(draw):
    """Draw a file."""
    names = draw(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=1, max_size=4))
    if REFUSED.keys() & set(names) and draw(st.integers(0, 3)):  # most files are to be trained
        names = [name for name in names if name not in REFUSED] or ["dense"]
    kind = draw(st.sampled_from(KINDS))
    losses = {"classification": CLASSIFICATION, "two": TWO}.get(kind, REGRESSION)
    loss_name = draw(st.sampled_from(sorted(losses)))
    loss, can_be_weighed = losses[loss_name]
    weighs = can_be_weighed and draw(st.booleans())
    size = draw(st.sampled_from([4, 7]))
    subclassed = draw(st.booleans()) and kind != "two" and loss_name != "reads"
    own = "self." if subclassed else ""
    if subclassed:  # Keras itself cannot build this layer in such a model
        names = ["lambda" if name == "fixed norm" else name for name in names]
    takes = draw(st.sampled_from(["", ", training=None"]))
    bag = draw(st.booleans())
    mask = draw(st.sampled_from(["", ", mask_zero=True"]))
    makes = [f'{own}ids = layers.Embedding({NUM_IDS}, 4, name="items"{mask})']
    calls = [f'e = {own}ids(f["ids"])']
    parts = ["ops.reshape(e, [-1, 8])", 'f["x"]']
    if bag:
        makes.append(f'{own}bag = layers.Embedding({NUM_IDS}, 3, name="bag")')
        parts.append(f'ops.sum({own}bag(f["ids"]), 1)')
    makes.append(f'{own}begin = layers.Dense({size}, activation="tanh", name="begin")')
    calls.append(f"h = {own}begin(ops.concatenate([{', '.join(parts)}], -1))")
    for number, name in enumerate(names):
        made, used = BLOCKS[name]
        at = f"{own}block_{number}"
        for suffix, layer in made.items():
            makes.append(f"{at}{suffix} = {layer.format(n=at, size=size)}")
        used = used.replace("ids(", f"{own}ids(")
        calls.append(used.format(n=at, size=size))
    outputs = CLASSES if kind == "classification" else 1
    makes.append(f'{own}out = layers.Dense({outputs}, name="out")')
    if kind == "sequence":  # of which the mask of the table may leave out a part
        makes += [f"{own}repeat = layers.RepeatVector(2)", f"{own}both = layers.Concatenate()"]
        calls.append(f"h = {own}both([e, {own}repeat(h)])")
    calls.append(f"y = {own}out(h)")
    if kind == "two":
        makes.append('other = layers.Dense(1, name="other")')
        calls.append('y = {"out": y, "other": other(h)}')
    if subclassed:
        model = "\n".join([
            "class Net(keras.Model):", "    def __init__(self):", "        super().__init__()",
            _indented(makes, 8), "", f"    def call(self, f{takes}):", _indented(calls, 8),
            "        return y\n\n", "def forward():", "    return Net()",
        ])  # fmt: skip
    else:
        model = "\n".join([
            "made = []\n\n", "def forward():",
            _indented([
                "f = {", f'    "x": keras.Input(({WIDTH},), name="x"),',
                '    "ids": keras.Input((2,), dtype="int64", name="ids"),',
                '    "kind": keras.Input((), dtype="int64", name="kind"),', "}",
                *makes, *calls, "made.append(keras.Model(f, y))", "return made[-1]",
            ], 4),
        ])  # fmt: skip
    rate, clip = draw(st.sampled_from(RATES)), draw(st.sampled_from(CLIPS))
    rule = draw(st.sampled_from(OPTIMIZERS)).format(r=rate, c=clip)
    labels = {
        "regression": 'r["y"]', "classification": 'r["kind"][None]',
        "two": '{"out": r["y"], "other": 0.5 * r["y"] + 1}',
        "sequence": 'tf.stack([r["y"], 0.5 * r["y"]])',
    }[kind]  # fmt: skip
    weight = {
        "two": '{"out": r["weight"], "other": 2 * r["weight"]}', "sequence": 'r["weight"][None]',
    }.get(kind, 'r["weight"]')  # fmt: skip
    weight = f", {weight}" if weighs else ""
    text = "\n".join([
        _HEAD, model, "\n", loss, "\n\ndef optimizer():",
        f"    return keras.optimizers.{rule}", "\n\ndef mean(labels, predictions):",
        "    return ops.mean(predictions, -1)", "\n\ndef eval_metrics_fn():",
        f"    return {METRICS[kind]}", "\n\ndef feed(dataset, mode, metadata):",
        "    def example(r):",
        '        f = {name: r[name] for name in ("x", "ids", "kind")}',
        f"        return f, {labels}{weight}\n", "    return dataset.map(example)", "",
    ])  # fmt: skip
    said = "|".join(
        REFUSED[name].format(n=f"block_{k}") for k, name in enumerate(names) if name in REFUSED
    )
    is_masked = kind == "sequence" and bool(mask)  # its mean is of what is not left out
    is_halved = not _OF_THE_WHOLE & set(names) and not is_masked
    return File(text, is_halved, said)
