"""`elasticdl run` of a training loop in TensorFlow."""

import json
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.packages.own_loops.script_job import ScriptJob, check_fails, check_ledger

HERE = Path(__file__).parent
pytestmark = [pytest.mark.keras, pytest.mark.timeout(400)]

NETWORK = """
import keras, tensorflow as tf

def make():
    # A bias before batch norm would have no gradient but noise.
    model = keras.Sequential([
        keras.Input((3,)), keras.layers.Dense(8, use_bias=False), keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2), keras.layers.ReLU(), keras.layers.Dense(1),
    ])
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 10, 0.5, staircase=True)
    optimizer = keras.optimizers.Adam(rate, global_clipnorm=5.0)

    @tf.function(reduce_retracing=True)
    def step(x):
        with tf.GradientTape() as tape:
            y = model(x, training=True)[:, 0]
            loss = tf.reduce_mean(tf.square(y - tf.reduce_sum(x, 1)))
        return loss, tape.gradient(loss, model.trainable_variables)

    return model, optimizer, step

def features(numbers):
    return tf.constant([[n % 7, n % 5, n % 3] for n in numbers], tf.float32)

def seeds(model):
    return [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]
"""

LOOP = """
import json
import elasticdl.controller
import network, tensorflow as tf

controller = elasticdl.controller.init()
model, adam, step = network.make()
model.save_weights("first.weights.h5")
optimizer = controller.wrap(model, adam)
seen = []
for records in controller.minibatches():
    numbers = [int(record) for record in records]
    seen.append(([v.numpy().tolist() for v in network.seeds(model)], numbers))
    loss, gradients = step(network.features(numbers))
    optimizer.apply_gradients(zip(gradients, model.trainable_variables), loss=loss)
threads = tf.config.threading.get_intra_op_parallelism_threads()
json.dump({"seen": seen, "threads": threads}, open("seen.json", "w"))
model.save_weights("last.weights.h5")
"""


@pytest.mark.long
def test_one_worker_trains_as_a_plain_loop_in_tensorflow(tmp_path, monkeypatch):
    (tmp_path / "network.py").write_text(NETWORK)
    (tmp_path / "loop.py").write_text(LOOP)
    monkeypatch.chdir(tmp_path)
    with ScriptJob(
        tmp_path, "loop.py", 500, minibatch_size=32, num_minibatches_per_task=4, worker_threads=1
    ) as job:
        check_ledger(job.finish(), 500)
    found = json.loads(Path("seen.json").read_text())
    assert found["threads"] == 1
    assert sorted(n for _, numbers in found["seen"] for n in numbers) == list(range(500))

    namespace = {}
    exec(NETWORK, namespace)
    model, adam, step = namespace["make"]()
    model.load_weights("first.weights.h5")
    for seeds, numbers in found["seen"]:
        for variable, value in zip(namespace["seeds"](model), seeds, strict=True):
            variable.assign(value)
        _, gradients = step(namespace["features"](numbers))
        adam.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    def weights_of(file):
        other, _, _ = namespace["make"]()
        other.load_weights(file)
        return other.get_weights()

    last, exported = weights_of("last.weights.h5"), weights_of("export/model.weights.h5")
    for mine, theirs, written in zip(model.get_weights(), last, exported, strict=True):
        if mine.dtype == np.float32:  # not the states of seed generators
            np.testing.assert_allclose(theirs, mine, rtol=1e-4, atol=1e-6)
            np.testing.assert_array_equal(written, theirs)


@pytest.mark.long
def test_a_worker_is_killed_and_each_record_counts_once(tmp_path):
    import h5py

    finals = tmp_path / "finals"
    finals.mkdir()
    with ScriptJob(
        tmp_path,
        HERE / "keras_script_loop.py",
        6_000,
        ["--num_records=6000", "--seconds=0.3", f"--finals={finals}"],
        num_workers=3,
        minibatch_size=16,
        num_minibatches_per_task=5,
        global_batch_size=48,
    ) as job:
        job.until_trained(200, also=partial(job.has_world_of, 3))
        job.send("worker", 1, signal.SIGKILL)
        job.hurry()
        summary = job.finish()
    check_ledger(summary, 6_000)
    with h5py.File(job.folder / "export" / "model.weights.h5") as file:
        values = [np.asarray(value) for value in file["vars"].values()]
    visits, minibatches = sorted(values, key=lambda value: -value.size)
    # The model itself has counted: sqrt(g * g) may differ from |g| in the last bit.
    np.testing.assert_allclose(visits, np.ones(6_000), rtol=1e-5)
    assert minibatches == 6_000 / 16
    digests = job.digests()
    assert len(digests) >= 2, job.log()  # two at least were there all the time
    assert len(set(digests)) == 1
    assert {2, 3} <= job.world_sizes()
    assert job.events("lost")


@pytest.mark.long
def test_a_script_that_does_not_do_its_part_fails_the_job_and_says_why(tmp_path):
    message = "expected optimizer.apply_gradients(zip("
    head = (
        "import elasticdl.controller, keras\n"
        "controller = elasticdl.controller.init()\n"
        "model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\n"
        "optimizer = controller.wrap(model, keras.optimizers.SGD(0.1))\n"
    )
    check_fails(tmp_path, head, "continue", message, max_relaunches=0)
