"""`--worker_devices` in Keras: which devices TensorFlow sees."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]

COMPUTE = """
import sys

from elasticdl.errors import ElasticdlError
from elasticdl.packages.keras.threads import compute_with
for device in sys.argv[1:]:
    try:
        compute_with(1, device)
        import tensorflow as tf
        print([device.device_type for device in tf.config.get_visible_devices()])
    except ElasticdlError as error:
        print(error)
"""


def compute_with(*devices):
    """Try devices in a process of its own, of which only the last one may be there."""
    done = subprocess.run(
        [sys.executable, "-c", COMPUTE, *devices],
        capture_output=True,
        text=True,
        timeout=250,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_a_gpu_that_is_not_there_is_refused_and_on_the_cpu_tensorflow_sees_none():
    refused, seen = compute_with("cuda:99", "cpu").splitlines()
    assert "expected cuda:99 on the machine of each worker, TensorFlow" in refused
    assert seen == "['CPU']"


def test_on_a_gpu_tensorflow_sees_that_one():
    tf = pytest.importorskip("tensorflow")
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("TensorFlow finds no GPU on this machine")
    assert compute_with("cuda:0") == "['CPU', 'GPU']"
