"""Deep interest network: which items of a user's history matter for this item?

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018. Each item of the
history gets a weight by its likeness to the shown item. So for a user with many interests the
interest that fits the item counts most. Histories have any length.
"""

import keras
import tensorflow as tf

from elasticdl import Mode
from elasticdl.layers import Dice, Embedding, TargetAttention
from elasticdl.preprocessing import ToDense, ToNumber, ToRagged

DIM = 16
HIDDEN = (80, 40)
MAX_HISTORY = 50  # the newest items; a history is the oldest first


def forward(num_items=None, num_categories=None):
    """Return the model: item, category and history -> logit of a click.

    Args:
        num_items: Ids of items are below this; None: no limit.
        num_categories: The same for categories.
    """
    item = keras.Input((1,), dtype="int64", name="item")
    category = keras.Input((1,), dtype="int64", name="category")
    items = keras.Input((1,), dtype="string", name="items")  # "17|4|256"
    categories = keras.Input((1,), dtype="string", name="categories")

    item_table = Embedding(DIM, num_items, name="items_table", mask_zero=True)
    category_table = Embedding(DIM, num_categories, name="categories_table", mask_zero=True)

    def vectors(item_ids, category_ids):
        return keras.layers.Concatenate()([item_table(item_ids), category_table(category_ids)])

    past_items, past_categories = _ids(items), _ids(categories)
    target = keras.layers.Reshape((2 * DIM,))(vectors(item, category))
    history = vectors(past_items, past_categories)
    is_item = keras.ops.not_equal(past_items, 0)
    interest = TargetAttention()([target, history, is_item])

    hidden = keras.layers.Concatenate()([interest, target, interest * target])
    for units in HIDDEN:
        hidden = Dice()(keras.layers.Dense(units)(hidden))
    logit = keras.layers.Dense(1)(hidden)
    inputs = {"item": item, "category": category, "items": items, "categories": categories}
    return keras.Model(inputs, logit)


def _ids(words):
    """Return the newest ids of each history, 0 after the last one."""
    lists = ToNumber("int64")(ToRagged("|")(words))
    return ToDense(filling=0, newest=MAX_HISTORY)(lists)


def loss(labels, predictions):
    """Return the mean binary cross-entropy of logits."""
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, predictions))


def optimizer(lr=0.01):
    """Return Adam."""
    return keras.optimizers.Adam(lr)


def feed(dataset, mode, metadata):
    """Parse lines of item, category, items, categories, clicked; ids begin at 1."""

    def parse(line):
        defaults = [[0], [0], [""], [""]] + ([] if mode == Mode.PREDICTION else [[0.0]])
        fields = tf.io.decode_csv(line, defaults)
        features = {
            "item": tf.cast(fields[0], tf.int64)[None],
            "category": tf.cast(fields[1], tf.int64)[None],
            "items": fields[2][None],
            "categories": fields[3][None],
        }
        return features if mode == Mode.PREDICTION else (features, fields[4][None])

    dataset = dataset.map(parse)
    return dataset.shuffle(1024) if mode == Mode.TRAINING else dataset


def eval_metrics_fn():
    """Return the metrics of an evaluation."""
    return {"auc": keras.metrics.AUC(from_logits=True)}
