"""Drives PyTorch's backend step by step with the real store, as `tests/unit/backends` does."""

import pytest

from elasticdl import Mode
from elasticdl.backends.load import load_trainer
from elasticdl.data.base import Metadata
from tests.unit.backends.conftest import as_records, begin, begin_job, make_spec, spec_of

__all__ = ["as_records", "begin_job", "spec_of"]


@pytest.fixture
def new_torch_job():
    """Return a function that builds a backend on the first records and declares its model."""

    def new(data, minibatch_size, seed=0, mode=Mode.TRAINING, run_eagerly=False, store=None,
            torch_compile=False, device=None, **functions):  # fmt: skip
        spec = make_spec(**functions)
        backend = load_trainer(spec, Metadata(), seed, 0, 1, run_eagerly, torch_compile, device)
        return begin(backend, data, minibatch_size, mode, run_eagerly, store)

    return new
