"""All metrics of a model, over one evaluation or over minibatches of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from elasticdl.backends.call_order import Tell, told_nobody
from elasticdl.errors import ModelError
from elasticdl.job import MetricStates
from elasticdl.packages.frameworks.user_code import no_place, user_code
from elasticdl.packages.keras.feed.minibatch import describe
from elasticdl.packages.keras.metrics.kinds import Metric, mask_of, with_mask
from elasticdl.packages.keras.metrics.resolve import Chosen, Outputs, choose, make
from elasticdl.packages.keras.types import Nested

MetricsFunction = Callable[[], object]

Part = tuple[Nested, Nested, Nested]
"""Labels, predictions and sample weights of a minibatch, or None."""


class Metrics:
    """All metrics of a model, by name: `metric`, or `output/metric` where there are several.

    Args:
        eval_metrics_fn: Returns the metrics, which do not see sample weights, as in Keras' `fit`.
        weighted_metrics_fn: Returns the metrics that do.
        tell: Gets a line about each metric that is called in another order than its names say.
    """

    def __init__(
        self,
        eval_metrics_fn: MetricsFunction | None,
        weighted_metrics_fn: MetricsFunction | None = None,
        tell: Tell = told_nobody,
    ) -> None:
        self._tell = tell
        self._plain = _call(eval_metrics_fn, "eval_metrics_fn")
        self._weighted = _call(weighted_metrics_fn, "weighted_metrics_fn")
        self._metrics: dict[str, _OfOutput] | None = None

    def resolve(
        self, labels: Nested, predictions: Nested, output_names: Sequence[str] = ()
    ) -> None:
        """Choose the metrics by how a minibatch looks; once."""
        if self._metrics is None:
            labels, predictions = (_by_name(part, output_names) for part in (labels, predictions))
            self._metrics = self._made(Outputs(labels, predictions, tuple(output_names)))

    def reset(self) -> None:
        """Start an evaluation."""
        for _, metric, _ in (self._metrics or {}).values():
            metric.reset()

    def update(
        self,
        labels: Nested,
        predictions: Nested,
        output_names: Sequence[str] = (),
        weights: Nested = None,
        which: Callable[[Metric], bool] = lambda metric: True,
    ) -> None:
        """Add a minibatch of labels and predictions, structured as feed and model give them.

        Args:
            labels: One structure for all outputs, or a dict or list with one for each.
            predictions: The predictions of the model.
            output_names: Names of the outputs of a model that gives a list of them.
            weights: Sample weights, for all outputs or by output, or None.
            which: Says which metrics take it.
        """
        self.resolve(labels, predictions, output_names)
        assert self._metrics is not None
        labels, predictions, weights = (
            _by_name(part, output_names) for part in (labels, predictions, weights)
        )

        def given() -> str:
            return f" on labels {describe(labels)} and predictions {describe(predictions)}"

        for name, (output, metric, is_weighted) in self._metrics.items():
            if not which(metric):
                continue
            with user_code(f"metric {name!r}", on=given, after=no_place):
                metric.update(
                    *_of_output(name, output, labels, predictions),
                    _weights_of(name, output, weights) if is_weighted else None,
                )

    def update_all(self, parts: Sequence[Part], output_names: Sequence[str] = ()) -> None:
        """Add several minibatches.

        Metrics that are known not to mind take their records in one call, which costs less. A
        user's own see one minibatch at a time, as in an evaluation.
        """
        for labels, predictions, weights in joined(parts):
            self.update(labels, predictions, output_names, weights, lambda m: m.takes_several)
        for labels, predictions, weights in parts:
            self.update(labels, predictions, output_names, weights, lambda m: not m.takes_several)

    def watched(self) -> dict[str, str | None] | None:
        """Return what is better of each metric, "min" or "max", by the names of Keras' logs.

        Returns:
            None for what is not known; instead of the dict if no minibatch was seen.
        """
        if self._metrics is None:
            return None
        named = self._metrics.items()
        return {in_logs(name): metric.better for name, (_, metric, _) in named}

    def states(self) -> MetricStates:
        """Return the sums of all metrics."""
        return {name: metric.state() for name, (_, metric, _) in (self._metrics or {}).items()}

    def results(self, states: MetricStates) -> dict[str, float]:
        """Compute all metrics from merged sums; a metric without sums is left out.

        Raises:
            ModelError: There are none at all, since `feed` gave nothing to evaluate.
        """
        if not states and (self._plain or self._weighted):
            raise ModelError(
                "feed made no example of any record in mode evaluation, so there are no metrics"
            )
        if self._metrics is None:
            self._metrics = self._made(None)
        return {
            name + suffix: value
            for name, (_, metric, _) in self._metrics.items()
            if name in states
            for suffix, value in metric.result(states[name]).items()
        }

    def _made(self, outputs: Outputs | None) -> dict[str, _OfOutput]:
        made: dict[str, _OfOutput] = {}
        for given, function, is_weighted in (
            (self._plain, "eval_metrics_fn", False),
            (self._weighted, "weighted_metrics_fn", True),
        ):
            for chosen in choose(given, function, outputs):
                if chosen.full_name in made:  # as Keras names it
                    chosen = Chosen(chosen.output, f"weighted_{chosen.name}", chosen.metric)
                made[chosen.full_name] = (
                    chosen.output,
                    make(chosen, outputs, self._tell),
                    is_weighted,
                )
        return made


_OfOutput = tuple[str | None, Metric, bool]  # output, metric, whether it sees sample weights


def in_logs(name: str) -> str:
    """Return the name that Keras' logs have for a metric of the job, `output/metric`."""
    return name.replace("/", "_")


def _call(function: MetricsFunction | None, name: str) -> object:
    if function is None:
        return {}
    with user_code(name, after=no_place):
        return function()


def _by_name(outputs: Nested, names: Sequence[str]) -> Nested:
    """Make a dict of a list that has an element for each of several outputs."""
    if isinstance(outputs, list | tuple) and 1 < len(outputs) == len(names):
        return dict(zip(names, outputs, strict=True))
    return outputs


def _weights_of(name: str, output: str | None, weights: Nested) -> Nested:
    if not isinstance(weights, Mapping | list | tuple):
        return weights
    if output is not None and isinstance(weights, Mapping):
        return weights.get(output)
    if len(weights) != 1:
        raise ModelError(
            f"metric {name!r} is not for one output, and feed gives sample weights by output: "
            "expected {output: {name: metric}} of weighted_metrics_fn"
        )
    (only,) = weights.values() if isinstance(weights, Mapping) else weights
    return only


def _of_output(
    name: str, output: str | None, labels: Nested, predictions: Nested
) -> tuple[Nested, Nested]:
    """Pick one output's labels and predictions; labels may also be common to all outputs."""
    if output is None:
        return labels, predictions
    if not isinstance(predictions, Mapping) or output not in predictions:
        known = (
            ", ".join(map(repr, predictions)) if isinstance(predictions, Mapping) else "no names"
        )
        raise ModelError(
            f"metric {name!r} is for the output {output!r}, but the model's outputs have {known}"
        )
    if isinstance(labels, Mapping):
        if output not in labels:
            raise ModelError(
                f"metric {name!r} is for the output {output!r}, but feed gives labels for "
                f"{', '.join(map(repr, labels))}"
            )
        labels = labels[output]
    return labels, predictions[output]


def joined(parts: Sequence[Part]) -> Sequence[Part]:
    """Return one part with the records of all, or the parts themselves if their shapes differ.

    The call of a metric costs more than its computation.
    """
    if len(parts) < 2:
        return parts
    try:
        structures = [tf.nest.flatten(part) for part in parts]
        for other in parts[1:]:
            tf.nest.assert_same_structure(parts[0], other)
        leaves = [_concatenated(leaf) for leaf in zip(*structures, strict=True)]
    except (TypeError, ValueError, tf.errors.OpError):
        return parts
    labels, predictions, weights = tf.nest.pack_sequence_as(parts[0], leaves)
    return [(labels, predictions, weights)]


def _concatenated(leaves: Sequence[tf.Tensor]) -> tf.Tensor | None:
    if leaves[0] is None:
        return None
    if not all(isinstance(leaf, tf.Tensor) and leaf.shape.rank for leaf in leaves):
        raise TypeError("only tensors with records are joined")
    masks = [mask_of(leaf) for leaf in leaves]
    mask = None if masks[0] is None else tf.concat(masks, 0)
    return with_mask(tf.concat(leaves, 0), mask)
