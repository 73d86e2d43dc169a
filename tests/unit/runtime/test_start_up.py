"""TensorFlow is asked to say little, and nothing looks for garbage while modules are loaded."""

import gc
import os

import pytest

from elasticdl.runtime.start_up import quiet_tensorflow, without_collection


@pytest.mark.parametrize(("said", "found"), [(None, "2"), ("0", "0")])
def test_who_asks_for_lines_of_tensorflow_gets_them(monkeypatch, said, found):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", said or "")
    if said is None:
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    quiet_tensorflow()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == found


def test_nothing_looks_for_garbage_within_the_block_and_then_it_is_looked_for():
    with without_collection():
        assert not gc.isenabled()
    try:
        assert gc.isenabled()
    finally:
        gc.unfreeze()
