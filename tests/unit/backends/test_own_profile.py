"""The profiler of a framework writes files, between two calls of the thread that computes."""

import sys

import pytest

from elasticdl.backends import own_profile


def test_without_a_framework_there_is_no_profile(tmp_path, monkeypatch):
    for name in ("elasticdl.backends.keras.trainer", "elasticdl.packages.torch.trainer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert own_profile.begin(tmp_path / "own") is None
    assert not (tmp_path / "own").exists()


@pytest.mark.keras
def test_tensorflow_writes_what_its_profile_plugin_reads(tmp_path):
    tf = pytest.importorskip("tensorflow", reason="this needs elasticdl-train[tensorflow]")
    from elasticdl.backends.keras.profile import begin

    end = begin(tmp_path / "own")
    tf.reduce_sum(tf.matmul(tf.ones((64, 64)), tf.ones((64, 64)))).numpy()
    end()
    (path,) = (tmp_path / "own").rglob("*.xplane.pb")
    assert path.stat().st_size > 0
    assert path.relative_to(tmp_path / "own").parts[:2] == ("plugins", "profile")


@pytest.mark.keras
def test_tensorflow_tells_the_operations_of_functions_that_a_worker_calls(tmp_path):
    tf = pytest.importorskip("tensorflow", reason="this needs elasticdl-train[tensorflow]")
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from elasticdl.backends.keras.model.function import FlatFunction, StructuredFunction
    from elasticdl.backends.keras.profile import begin

    ones = tf.ones((8, 8))
    product = StructuredFunction(lambda x: tf.matmul(x, x), tf.TensorSpec((8, 8)))
    before = product(ones).numpy()
    end = begin(tmp_path / "own")
    while_profiled = product(ones).numpy()
    end()
    assert (while_profiled == before).all()
    assert FlatFunction.executor_type == ""
    (path,) = (tmp_path / "own").rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    names = {found.name for plane in space.planes for found in plane.event_metadata.values()}
    assert any("MatMul" in name for name in names), names
