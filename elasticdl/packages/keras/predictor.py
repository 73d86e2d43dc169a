"""An exported model on TensorFlow: it is evaluated, or predicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from elasticdl.backends.average import as_numbers
from elasticdl.backends.base import Float32, Minibatch, TellFeedWay, tell_nobody
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.frameworks.parts import ComposedPredictor
from elasticdl.packages.keras.export import Exported
from elasticdl.packages.keras.feed.minibatch import KerasMinibatch
from elasticdl.packages.keras.feed.runner import FeedRunner
from elasticdl.packages.keras.metrics.collection import Metrics


class SavedModelPredictor(ComposedPredictor):
    """A `Predictor` that brings its own parameters: rows, dense and state vectors are empty.

    Args:
        spec: The model file's functions; of these `feed` and `eval_metrics_fn` are used.
        metadata: The description of the data, for `feed`.
        directory: The folder that `KerasTrainer.export` wrote, or another SavedModel with a `serve`
            endpoint that takes what `feed` gives as features.
        tell_feed: Is told which way `feed` runs.
    """

    def __init__(
        self,
        spec: ModelSpec,
        metadata: Metadata,
        directory: Path,
        tell_feed: TellFeedWay = tell_nobody,
    ) -> None:
        self._metrics = Metrics(spec.eval_metrics_fn, spec.weighted_metrics_fn, spec.tell)
        super().__init__(FeedRunner(spec.feed, metadata, tell=tell_feed), self._metrics)
        self._exported = Exported(directory)

    def check(self, sample: Minibatch) -> None:
        """Call the model once.

        Raises:
            ModelError: It does not take what `feed` gives.
        """
        outputs = self._exported(KerasMinibatch.of(sample))
        if sample.labels is not None:
            self._metrics.resolve(sample.labels, outputs, self._exported.output_names)

    def evaluate_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Add a minibatch to the metrics."""
        if self._exported.has_masks:
            raise ModelError(
                "--saved_model: the model's outputs have masks, which a SavedModel does not keep: "
                "metrics would count masked steps; evaluate with --checkpoint_dir_for_init"
            )
        minibatch = KerasMinibatch.of(minibatch)
        outputs = self._exported(minibatch)
        self._metrics.update(
            minibatch.labels, outputs, self._exported.output_names, minibatch.weights
        )

    def predict_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> tf.Tensor:
        """Return the model's outputs as arrays."""
        return tf.nest.map_structure(as_numbers, self._exported(KerasMinibatch.of(minibatch)))
