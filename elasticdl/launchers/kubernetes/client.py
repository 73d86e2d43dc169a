"""The way to the API server: the official client, with plain JSON going in and out."""

from __future__ import annotations

from types import ModuleType

from elasticdl.errors import ConfigError


def library() -> ModuleType:
    """Return the Python client of Kubernetes, which comes with an extra.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import kubernetes
    except ImportError as error:
        raise ConfigError(
            "jobs on Kubernetes need its Python client: pip install 'elasticdl[kubernetes]' "
            f"({error})"
        ) from error
    return kubernetes
