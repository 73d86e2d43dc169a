"""Lets model files import modules of ElasticDL 0.x by their old names.

There are no files for these names. A finder makes a module when a model file imports one. An old
name then gives the object at its present place. A name without a present place is refused, with
advice on what to write instead. `docs/migrating.md` is made from the same tables.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from elasticdl.errors import ModelError

_PREPROCESSING = {
    name: f"elasticdl.preprocessing.{name}"
    for name in (
        *("ConcatenateWithOffset", "Hashing", "IndexLookup", "LogRound", "Normalizer"),
        *("RoundIdentity", "SparseEmbedding", "ToNumber", "ToRagged", "ToSparse"),
    )
} | {"Discretization": "elasticdl.preprocessing.earlier.Discretization"}
_STATISTICS = {
    f"get_{what}": f"elasticdl.preprocessing.statistics.get_{what}"
    for what in (
        *("min", "max", "avg", "stddev"),
        *("bucket_boundaries", "distinct_count", "vocabulary"),
    )
}
_EMBEDDING = {"Embedding": "elasticdl.layers.Embedding"}
_NO_COLUMNS = (
    "Keras 3 has no feature columns; use the layers of elasticdl.preprocessing "
    "(ConcatenateWithOffset, SparseEmbedding), or declare the columns as an "
    "elasticdl.preprocessing.tabular.Table"
)

MOVED: dict[str, dict[str, str]] = {
    "elasticdl.python.common.constants": {
        "Mode": "elasticdl.Mode",
        "MaxComputeConfig": "elasticdl.compat.earlier.MaxComputeConfig",
        "ODPSConfig": "elasticdl.compat.earlier.MaxComputeConfig",
    },
    "elasticdl.python.common.log_utils": {
        "default_logger": "elasticdl.compat.earlier.default_logger"
    },
    "elasticdl.python.data.odps_io": {
        "ODPSWriter": "elasticdl.compat.earlier.ODPSWriter",
        "is_odps_configured": "elasticdl.compat.earlier.is_odps_configured",
    },
    "elasticdl.python.elasticdl.callbacks": {
        "LearningRateScheduler": "elasticdl.callbacks.LearningRateScheduler"
    },
    "elasticdl.python.elasticdl.layers": _EMBEDDING,
    "elasticdl.python.elasticdl.layers.embedding": _EMBEDDING,
    "elasticdl.python.keras.layers": _EMBEDDING,
    "elasticdl.python.worker.prediction_outputs_processor": {
        "BasePredictionOutputsProcessor": "elasticdl.compat.earlier.BasePredictionOutputsProcessor"
    },
    "elasticdl_preprocessing.layers": {**_PREPROCESSING, **_EMBEDDING},
    **{
        f"elasticdl_preprocessing.layers.{module}": {name: _PREPROCESSING[name]}
        for module, name in {
            "concatenate_with_offset": "ConcatenateWithOffset",
            "discretization": "Discretization",
            "hashing": "Hashing",
            "index_lookup": "IndexLookup",
            "log_round": "LogRound",
            "normalizer": "Normalizer",
            "round_identity": "RoundIdentity",
            "sparse_embedding": "SparseEmbedding",
            "to_number": "ToNumber",
            "to_ragged": "ToRagged",
            "to_sparse": "ToSparse",
        }.items()
    },
    "elasticdl_preprocessing.utils": {"analyzer_utils": "elasticdl.preprocessing.statistics"},
    "elasticdl_preprocessing.utils.analyzer_utils": _STATISTICS,
}
"""Old module -> name in it -> present place."""

GONE: dict[str, str] = {
    "elasticdl.python.elasticdl.callbacks.MaxStepsStopping": "say --num_epochs, or write a Keras "
    "callback that sets self.model.stop_training",
    "elasticdl.python.elasticdl.callbacks.SavedModelExporter": "leave it out, and say --output",
    "elasticdl.python.elasticdl.feature_column": _NO_COLUMNS,
    "elasticdl.python.data.odps_io.ODPSReader": "give --training_data=odps://PROJECT/tables/TABLE, "
    "or write custom_data_reader in the model file",
    "elasticdl.python.data.reader": "write custom_data_reader in the model file",
    "elasticdl_preprocessing.feature_column": _NO_COLUMNS,
    "elasticdl_preprocessing.utils.decorators": "make a keras.Input for each feature in the model "
    "function",
    "elasticai_api": "run your own loop, in PyTorch or TensorFlow, by elasticdl run, with "
    "elasticdl.controller instead of elasticai_api",
}
"""Old module, or a name in it -> advice on what to write instead."""


class MaxComputeConfig:
    """Names of the environment variables with the address and keys of MaxCompute."""

    PROJECT_NAME = "MAXCOMPUTE_PROJECT"
    ACCESS_ID = "MAXCOMPUTE_AK"
    ACCESS_KEY = "MAXCOMPUTE_SK"
    ENDPOINT = "MAXCOMPUTE_ENDPOINT"
    TUNNEL_ENDPOINT = "MAXCOMPUTE_TUNNEL_ENDPOINT"


class BasePredictionOutputsProcessor:
    """A base class. Its `process` gets arrays that have the method `numpy`, as tensors have."""


def is_odps_configured() -> bool:
    """Whether the environment has the address and keys of MaxCompute."""
    names = ("PROJECT_NAME", "ACCESS_ID", "ACCESS_KEY", "ENDPOINT")
    return all(getattr(MaxComputeConfig, name) in os.environ for name in names)


class ODPSWriter:
    """Stands for the old writer of predictions. It can be imported, but its call is refused."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        raise ModelError(
            "ODPSWriter is of ElasticDL 0.x, and is gone: say --output, which writes predictions "
            "as files, or write them in process(predictions, worker_id), with pyodps for example"
        )


def offer_earlier_modules() -> None:
    """Let model files import modules of ElasticDL 0.x by their old names."""
    if not any(type(finder) is _Finder for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # last, so that an installed package comes first


class _Finder(MetaPathFinder):
    """Makes an old module, and finds `model_zoo.a.b` as `a.b`: one file, one module for both names.

    The folder of `--model_zoo` is on the import path. Images of ElasticDL 0.x also had the folder
    above it there. So files of an old zoo import each other as `model_zoo.census.features`.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, name = fullname.partition(".")
        if root == "model_zoo" and name:
            found = importlib.util.find_spec(name)
            return None if found is None else ModuleSpec(fullname, _SameModule(name))
        remedy = _remedy(fullname)
        if remedy is not None:
            raise ModelError(f"{fullname} is of ElasticDL 0.x, and is gone: {remedy}")
        known = (
            fullname == "model_zoo"
            or fullname in MOVED
            or any(name.startswith(f"{fullname}.") for name in (*MOVED, *GONE))
        )
        return ModuleSpec(fullname, _Loader(), is_package=True) if known else None


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None  # Python makes an ordinary module

    def exec_module(self, module: ModuleType) -> None:
        names = MOVED.get(module.__name__, {})

        def find(name: str) -> Any:
            remedy = _remedy(f"{module.__name__}.{name}")
            if remedy is not None:
                raise ModelError(f"{module.__name__}.{name} is of ElasticDL 0.x: {remedy}")
            if name not in names:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return pkgutil.resolve_name(names[name])

        module.__getattr__ = find  # type: ignore[method-assign]


class _SameModule(Loader):
    def __init__(self, name: str) -> None:
        self._name = name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module = importlib.import_module(self._name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec  # the module ran under its other name


def _remedy(name: str) -> str | None:
    for gone, remedy in GONE.items():
        if name == gone or name.startswith(f"{gone}."):
            return remedy
    return None


def __getattr__(name: str) -> Any:
    if name == "default_logger":
        import logging

        return logging.getLogger("elasticdl.model_file")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
