"""Layers of `elasticdl_preprocessing` of ElasticDL 0.x whose arguments differ from today's."""

from __future__ import annotations

from collections.abc import Sequence

import keras


@keras.saving.register_keras_serializable(package="elasticdl")
class Discretization(keras.layers.Discretization):  # type: ignore[misc]  # keras has no types
    """Keras' layer with the earlier name `bins` for its boundaries, and with `num_bins`."""

    def __init__(self, bins: Sequence[float], **kwargs: object) -> None:
        super().__init__([float(boundary) for boundary in bins], **kwargs)
        self.bins = list(self.bin_boundaries)
        del self.num_bins  # Keras' own, which says into how many bins `adapt` cuts; None here

    def num_bins(self) -> int:
        """Return the number of ids."""
        return len(self.bins) + 1

    def get_config(self) -> dict[str, object]:
        """Return the arguments that rebuild the layer."""
        return {
            "bins": self.bins,
            "output_mode": self.output_mode,
            "sparse": self.sparse,
            "name": self.name,
            "dtype": self.dtype,
        }
