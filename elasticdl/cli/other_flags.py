"""Lists the flags that were removed, with what to use in their place."""

from __future__ import annotations

REMOVED = {
    "otlp_endpoint": "a collector of OpenTelemetry reads /metrics of the job's page, by its "
    "receiver prometheus",
}
"""The flags that this version no longer has, with what to use in their place."""
