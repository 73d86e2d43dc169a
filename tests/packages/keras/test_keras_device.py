"""`--worker_devices` in Keras: which devices TensorFlow sees."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.keras, pytest.mark.timeout(300)]

COMPUTE = """
import sys

from elasticdl.packages.keras.threads import compute_with
compute_with(1, sys.argv[1])
import tensorflow as tf
print([device.device_type for device in tf.config.get_visible_devices()])
"""


def compute_with(device):
    """Try a device in a process of its own: TensorFlow can be told once."""
    done = subprocess.run(
        [sys.executable, "-c", COMPUTE, device],
        capture_output=True,
        text=True,
        timeout=140,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_on_the_cpu_tensorflow_sees_no_gpu():
    assert compute_with("cpu") == "['CPU']"


def test_a_gpu_that_is_not_there_is_refused_with_what_there_is():
    assert "expected cuda:99 on the machine of each worker, TensorFlow" in compute_with("cuda:99")


def test_on_a_gpu_tensorflow_sees_that_one():
    tf = pytest.importorskip("tensorflow")
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("TensorFlow finds no GPU on this machine")
    assert compute_with("cuda:0") == "['CPU', 'GPU']"
