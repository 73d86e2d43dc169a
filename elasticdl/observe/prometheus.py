"""Writes metrics in the form that a client such as Prometheus asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it comes with an extra
    from prometheus_client import CollectorRegistry


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return all metrics of a registry, and their content type.

    Args:
        registry: The metrics.
        accept: The header that says whether the client reads OpenMetrics.
    """
    from prometheus_client.exposition import choose_encoder

    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # of a version that is no number
        encode, content_type = choose_encoder("")
    encoded: bytes = encode(registry)
    return encoded, content_type
