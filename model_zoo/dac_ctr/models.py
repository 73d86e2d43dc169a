"""Models of click prediction: functions from the columns of one encoded table to logits.

The layers of the papers are in `elasticdl.layers`.
"""

import keras

from elasticdl.layers import CompressedInteraction, CrossNetwork, FactorizationMachine

HIDDEN = (256, 128)


def wide_deep(columns, dim):
    """Return wide & deep. Cheng et al., DLRS 2016."""
    return columns.linear() + keras.layers.Dense(1)(_deep(columns.flat(dim)))


def deepfm(columns, dim):
    """Return DeepFM: products of pairs of vectors, and a network. Guo et al., IJCAI 2017."""
    vectors = columns.vectors(dim)
    deep = keras.layers.Dense(1)(_deep(_beside(columns, vectors)))
    return columns.linear() + FactorizationMachine()(vectors) + deep


def xdeepfm(columns, dim, sizes=(64, 64)):
    """Return xDeepFM: a compressed interaction network and a deep one. Lian et al., KDD 2018."""
    vectors = columns.vectors(dim)
    explicit = keras.layers.Dense(1)(CompressedInteraction(sizes)(vectors))
    deep = keras.layers.Dense(1)(_deep(_beside(columns, vectors)))
    return columns.linear() + explicit + deep


def dcn(columns, dim, num_layers=3):
    """Return deep & cross. Wang et al., ADKDD 2017."""
    return _cross(columns, dim, CrossNetwork(num_layers, version=1))


def dcn_v2(columns, dim, num_layers=3, rank=64):
    """Return DCN v2, with matrices of low rank. Wang et al., WWW 2021."""
    return _cross(columns, dim, CrossNetwork(num_layers, version=2, rank=rank))


MODELS = {
    "wide_deep": wide_deep,
    "deepfm": deepfm,
    "xdeepfm": xdeepfm,
    "dcn": dcn,
    "dcn_v2": dcn_v2,
}


def _cross(columns, dim, network):
    flat = _beside(columns, columns.vectors(dim))
    both = keras.layers.Concatenate()([network(flat), _deep(flat)])
    return keras.layers.Dense(1)(both)


def _beside(columns, vectors):
    """Return all vectors and numbers of a record in one row."""
    return keras.layers.Concatenate()([keras.layers.Flatten()(vectors), columns.numbers])


def _deep(hidden):
    for units in HIDDEN:
        hidden = keras.layers.Dense(units, activation="relu")(hidden)
    return hidden
