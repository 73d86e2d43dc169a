"""What `--keep_best` says: a metric of evaluations, and whether more of it is better or less."""

from __future__ import annotations

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
    """A metric, less `val_`, and the mode: "max" or "min"."""

    metric: str
    mode: str

    @classmethod
    def of(cls, text: str) -> Best | None:
        """Read the flag; None if nothing is said.

        Raises:
            ValueError: It cannot be told whether more or less is better.
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
        """Return a metric with its mode; None if its name does not tell that."""
        try:
            return cls(metric, _mode(metric))
        except ValueError:
            return None


def _mode(metric: str) -> str:
    lower = metric.lower()
    if any(word in lower for word in _LESS):
        return "min"
    if any(word in lower for word in _MORE):
        return "max"
    raise ValueError(
        f"--keep_best={metric}: whether more or less of it is better cannot be told; say "
        f"--keep_best={metric}:max or --keep_best={metric}:min"
    )
