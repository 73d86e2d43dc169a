"""A worker that joins a job of all-reduce must train the same model as the others.

It may have another one where the model file was changed while the job runs. Its gradients would
not fit those of the others, or its optimizer would make other updates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from elasticdl.backends.base import ModelDescription
from elasticdl.errors import ModelMismatchError

_LISTS = {"tables": "table", "dense": "dense variable", "state": "state variable"}


def described(model: ModelDescription) -> dict[str, Any]:
    """Return a model's description as it comes back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(model)))
    return plain


def check_agreement(model: ModelDescription, given: Mapping[str, Any]) -> None:
    """Check that a worker's model is that of the one which gives it the parameters.

    Args:
        model: Its own.
        given: The other worker's model, as `described` returns it.

    Raises:
        ModelMismatchError: They differ; says in what.
    """
    own = described(model)
    if own != given:
        raise ModelMismatchError(
            f"{_difference(own, given)}; expected the same model in all workers: was the model "
            "file, or what it reads, changed while the job runs?"
        )


def _difference(own: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    for part, kind in _LISTS.items():
        here, there = own[part], given[part]
        if len(here) != len(there):
            return f"this worker's model has {len(here)} {kind}s, that of the others {len(there)}"
        for one, other in zip(here, there, strict=True):
            if one != other:
                return f"{kind} {one['name']!r} has {_first(one, other)}"
    return f"this worker's model has {_first(own, given)}"


def _first(own: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Say the first value that differs."""
    name = next(name for name in own if own[name] != given.get(name))
    return f"{name} {own[name]} here, {given.get(name)} in the other workers"
