"""Reads `--keep_best`: a metric, and whether a larger or a smaller value is better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_LESS = (
    "loss",
    "error",
    "mse",
    "mae",
    "mape",
    "msle",
    "rmse",
    "entropy",
    "perplexity",
    "hinge",
    "divergence",
    "poisson",
    "deviance",
    "false",
)
_MORE = (
    "acc",
    "auc",
    "auroc",
    "precision",
    "recall",
    "f1",
    "fbeta",
    "iou",
    "ndcg",
    "mrr",
    "hit",
    "r2",
    "top",
    "true",
    "cosine_similarity",
    "sensitivity",
    "specificity",
)


@dataclass(frozen=True, slots=True)
class Best:
    """A metric without `val_`, and its mode: "max" or "min"."""

    metric: str
    mode: str

    @classmethod
    def of(cls, text: str) -> Best | None:
        """Read the flag; None if it is empty.

        Raises:
            ValueError: The name does not tell whether a larger or a smaller value is better.
        """
        if not text:
            return None
        name, separator, mode = text.rpartition(":")
        if not separator:
            name, mode = text, ""
        metric = name.removeprefix("val_")
        if not metric or (separator and mode not in ("min", "max")):
            raise ValueError(
                f"--keep_best={text}: expected METRIC, METRIC:max or METRIC:min, such as auc"
            )
        return cls(metric, mode or _mode(metric))

    @classmethod
    def known(cls, metric: str) -> Best | None:
        """Return a metric with its mode; None if its name does not tell the mode."""
        try:
            return cls(metric, _mode(metric))
        except ValueError:
            return None

    def is_better(self, value: float, than: float) -> bool:
        """Return whether a value is better than another one; NaN is neither better nor worse."""
        return value > than if self.mode == "max" else value < than

    def value_in(self, metrics: Mapping[str, float]) -> float | None:
        """Return the metric's value; None if it is not among some metrics."""
        # Both sides go through key_of, so `a/auc` and `a_auc` name the same metric.
        found = {key_of(name): value for name, value in metrics.items()}
        return found.get(key_of(self.metric))


def key_of(metric: str) -> str:
    """Return a metric's name in the form that `--keep_best` allows."""
    return metric.replace("/", "_")


def _mode(metric: str) -> str:
    lower = metric.lower()
    # The words for errors come first: `top_k_error` has words of both lists, and is an error.
    if any(word in lower for word in _LESS):
        return "min"
    if any(word in lower for word in _MORE):
        return "max"
    raise ValueError(
        f"--keep_best={metric}: whether more or less of it is better cannot be told; say "
        f"--keep_best={metric}:max or --keep_best={metric}:min"
    )
