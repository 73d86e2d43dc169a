"""Drives Keras' backend step by step with the real store, as `tests/unit/backends` does."""

import pytest

from elasticdl import Mode
from elasticdl.data.base import Metadata
from tests.unit.backends.conftest import as_records, begin, begin_job, make_spec, spec_of

__all__ = ["as_records", "begin_job", "spec_of"]


@pytest.fixture
def new_job():
    """Return a function that builds a backend on the first records and declares its model."""
    from elasticdl.packages.keras.trainer import KerasTrainer  # imports TensorFlow

    def new(data, minibatch_size, seed=0, threshold=2 * 1024 * 1024, mode=Mode.TRAINING,
            run_eagerly=False, **functions):  # fmt: skip
        spec = make_spec(**functions)
        backend = KerasTrainer(spec, Metadata(), seed, threshold, run_eagerly)
        return begin(backend, data, minibatch_size, mode, run_eagerly)

    return new
