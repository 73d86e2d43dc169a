"""Rates at which data was sampled."""

from __future__ import annotations

from elasticdl.errors import ModelError


def require_rate(rate: float) -> float:
    """Return the share of negatives that was kept.

    Raises:
        ModelError: The number is no such share.
    """
    if not 0.0 < rate <= 1.0:
        raise ModelError(
            f"SamplingCorrection: rate={rate}: expected the share of the negatives that was kept, "
            "above 0 and at most 1"
        )
    return float(rate)
