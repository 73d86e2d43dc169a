"""A PyTorch model as an export has it: two programs of `torch.export`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elasticdl.backends.base import Float32, Int64
from elasticdl.backends.served import (
    FeatureSpec,
    not_scored,
    num_ids,
    outputs_by_name,
    parts,
)
from elasticdl.data.strings import Array
from elasticdl.errors import ExportError
from elasticdl.packages.torch.export_beside import DESCRIPTION, IDS, SCORE
from elasticdl.packages.torch.structures import Nested, as_array

_PREFIX = "model."  # of the parameters in a program


class TorchServed:
    """`ServedModel` of two programs."""

    def __init__(self, folder: Path) -> None:
        """Load them.

        Raises:
            ExportError: They cannot be loaded, or take what no request can say.
        """
        self._folder = folder
        try:
            described = json.loads((folder / DESCRIPTION).read_text())
            self.lookups = described["lookups"]
            self.num_ids = num_ids(described["tables"])
            program = torch.export.load(folder / IDS)
            self._ids = program.module()
            self._score = torch.export.load(folder / SCORE).module()
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise ExportError(f"{folder}: the model cannot be loaded: {error}") from error
        (features,), _ = program.example_inputs
        self._is_dict = isinstance(features, dict)
        self.features = _features(features, folder)
        self._names = [list(described[kind]) for kind in ("dense", "state")]
        self._shapes = (
            list(described["dense"].values()),
            list(described["state"].values()),
        )

    def set_parameters(self, dense: Float32, state: Float32) -> None:
        """See `ServedModel`."""
        # Both programs have parameters of the model, and each has its own copy.
        there = [_named(program) for program in (self._ids, self._score)]
        values_of_kinds = parts(self._folder, self._shapes, dense, state)
        for names, values in zip(self._names, values_of_kinds, strict=True):
            for name, value in zip(names, values, strict=True):
                for tensors in there:
                    if (tensor := tensors.get(_PREFIX + name)) is not None:
                        with torch.no_grad():
                            tensor.copy_(torch.from_numpy(value.copy()))

    def ids(self, features: Mapping[str, Array]) -> list[Int64]:
        """See `ServedModel`."""
        found = _called(self._ids, self._given(features))[: len(self.lookups)]
        return [np.ascontiguousarray(ids.numpy(), np.int64) for ids in found]

    def score(self, features: Mapping[str, Array], rows: Sequence[Float32]) -> dict[str, Array]:
        """See `ServedModel`."""
        given = [torch.from_numpy(of_site) for of_site in rows]
        outputs = _called(self._score, self._given(features), given)
        return {name: as_array(value) for name, value in outputs_by_name(outputs, ()).items()}

    def _given(self, features: Mapping[str, Array]) -> Nested:
        tensors = {name: torch.from_numpy(value.copy()) for name, value in features.items()}
        return tensors if self._is_dict else next(iter(tensors.values()))


def _named(program: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers, which `state_dict` has only if they are persistent."""
    parameters = program.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(program.named_buffers(remove_duplicate=False))}


def _called(program: Callable[..., Any], *given: object) -> Any:
    try:
        with torch.no_grad():
            return program(*given)
    except (IndexError, RuntimeError, ValueError, AssertionError) as error:
        raise not_scored(error) from error


def _features(features: Nested, folder: Path) -> list[FeatureSpec]:
    named: Mapping[str, torch.Tensor] = (
        features if isinstance(features, dict) else {"features": features}
    )
    wrong = [name for name, value in named.items() if not isinstance(value, torch.Tensor)]
    if wrong:
        raise ExportError(
            f"{folder}: feature {wrong[0]!r} is not a tensor; over HTTP a feature must be a dense "
            "tensor"
        )
    return [
        FeatureSpec(name, str(value.dtype).removeprefix("torch."), tuple(value.shape[1:]))
        for name, value in named.items()
    ]
