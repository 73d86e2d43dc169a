"""TensorFlow's profiler writes files, between two calls of the thread that computes."""

import pytest

tf = pytest.importorskip("tensorflow", reason="this needs elasticdl-train[tensorflow]")

from tensorflow.tsl.profiler.protobuf import xplane_pb2  # noqa: E402  # after the skip

from elasticdl.packages.keras.model.function import (  # noqa: E402  # as above
    FlatFunction,
    StructuredFunction,
)
from elasticdl.packages.keras.profile import begin  # noqa: E402  # as above

pytestmark = pytest.mark.keras


def test_tensorflow_writes_what_its_profile_plugin_reads(tmp_path):
    end = begin(tmp_path / "own")
    tf.reduce_sum(tf.matmul(tf.ones((64, 64)), tf.ones((64, 64)))).numpy()
    end()
    (path,) = (tmp_path / "own").rglob("*.xplane.pb")
    assert path.stat().st_size > 0
    assert path.relative_to(tmp_path / "own").parts[:2] == ("plugins", "profile")


def test_tensorflow_tells_the_operations_of_functions_that_a_worker_calls(tmp_path):
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
