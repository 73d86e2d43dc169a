"""Vocabularies of a functional model's lookup layers, by the input that each is called with."""

from __future__ import annotations

import keras


def vocabularies_of(model: keras.Model) -> dict[str, tuple[str, ...]]:
    """Return the words of each input that a lookup layer is given as it is.

    Of a model that is no graph of layers nothing is known, nor of inputs that are changed before.
    """
    inputs = getattr(model, "inputs", None)
    if not inputs or not isinstance(model, keras.Model):
        return {}
    names = {id(tensor): tensor.name for tensor in keras.tree.flatten(inputs)}
    found: dict[str, tuple[str, ...]] = {}
    for layer in model.layers:
        words = _words(layer)
        nodes = getattr(layer, "_inbound_nodes", ())
        for node in nodes if words else ():
            for tensor in node.input_tensors:
                if id(tensor) in names:
                    found[names[id(tensor)]] = words
    return found


def _words(layer: keras.layers.Layer) -> tuple[str, ...]:
    """Return the words that have ids of their own; none of a layer that is no lookup."""
    if isinstance(layer, keras.layers.StringLookup | keras.layers.IntegerLookup):
        if layer.invert:
            return ()
        return tuple(str(word) for word in layer.get_vocabulary(include_special_tokens=False))
    return ()
