"""Model files of ElasticDL 0.x: modules by their names of then, and calls that Keras 3 lacks."""

import importlib
import json
import pkgutil
import re
import sys
from pathlib import Path

import pytest

from elasticdl.config import ModelSection
from elasticdl.errors import ModelError
from elasticdl.model_spec import load_model_spec
from elasticdl.packages.earlier.modules import GONE, MOVED, offer_earlier_modules
from tests.elastic.running_job import in_process

PAGE = (Path(__file__).parents[3] / "docs" / "migrating.md").read_text()

pytestmark = pytest.mark.keras


@pytest.fixture(autouse=True)
def forget():
    """Leave no module of then behind."""
    offer_earlier_modules()
    yield
    for name in [*sys.modules]:
        if name.startswith(("elasticdl.python", "elasticdl_preprocessing")):
            del sys.modules[name]


@pytest.mark.parametrize("module", MOVED)
def test_each_name_of_then_is_what_it_is_now(module):
    found = importlib.import_module(module)

    for name, home in MOVED[module].items():
        assert getattr(found, name) is pkgutil.resolve_name(home)
        assert f"| `{module}` | `{name}` |" in PAGE


@pytest.mark.parametrize("gone", GONE)
def test_what_is_gone_is_answered_with_what_to_write(gone):
    module, _, name = gone.rpartition(".")

    with pytest.raises(ModelError, match=r"of ElasticDL 0.x.*: ") as raised:
        exec(f"from {module} import {name}" if module else f"import {name}.common")

    assert str(raised.value).endswith(GONE[gone])
    assert f"| `{gone}` | {GONE[gone]} |" in PAGE


def test_a_module_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=re.escape("elasticdl.python.common.nothing")):
        importlib.import_module("elasticdl.python.common.nothing")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from elasticdl.python.common.constants import Nothing")


OLD_FILE = """
import tensorflow as tf

from elasticdl.python.common.constants import Mode
from elasticdl.python.elasticdl.callbacks import LearningRateScheduler
from elasticdl.python.elasticdl.layers.embedding import Embedding
from elasticdl.python.worker.prediction_outputs_processor import BasePredictionOutputsProcessor
from elasticdl_preprocessing.layers import ConcatenateWithOffset, Hashing, Normalizer
from elasticdl_preprocessing.layers.discretization import Discretization
from elasticdl_preprocessing.utils import analyzer_utils


def custom_model():
    age = tf.keras.layers.Input(shape=(1,), name="age", dtype=tf.float32)
    city = tf.keras.layers.Input(shape=(1,), name="city", dtype=tf.string)
    bucket = Discretization(bins=[20, 40])(age)
    ids = ConcatenateWithOffset(offsets=[0, 3])([bucket, Hashing(num_bins=10)(city)])
    rows = tf.keras.layers.Flatten()(Embedding(output_dim=4, input_dim=13)(ids))
    scaled = Normalizer(subtractor=analyzer_utils.get_avg("age", 30), divisor=10.0)(age)
    x = tf.keras.layers.Concatenate()([rows, scaled])
    outputs = tf.keras.layers.Dense(1)(x)
    return tf.keras.Model(inputs=[age, city], outputs=outputs)


def loss(labels, predictions):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(
        logits=predictions, labels=tf.cast(labels, tf.float32)))


def optimizer(lr=0.1):
    return tf.optimizers.SGD(lr)


def callbacks():
    return [LearningRateScheduler(lambda step: 0.5 if step < 10 else 0.1)]


class PredictionOutputsProcessor(BasePredictionOutputsProcessor):
    def process(self, predictions, worker_id):
        pass


def dataset_fn(dataset, mode, _):
    def parse(line):
        age, city, label = tf.io.decode_csv(line, [[0.0], [""], [0]])
        features = {"age": [age], "city": [city]}
        return features if mode == Mode.PREDICTION else (features, [label])

    return dataset.map(parse)


def eval_metrics_fn():
    return {"auc": tf.keras.metrics.AUC(from_logits=True)}
"""


def load(tmp_path, text, name):
    (tmp_path / f"{name}.py").write_text(text)
    return load_model_spec(ModelSection(model_zoo=tmp_path, model_def=f"{name}.custom_model"))


def test_a_file_of_then_trains_as_it_is(tmp_path):
    (tmp_path / "of_then.py").write_text(OLD_FILE)
    lines = [f"{20 + k % 50},{'ab'[k % 2]},{k % 2}" for k in range(400)]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    words = [
        *(f"--model_zoo={tmp_path}", "--model_def=of_then.custom_model"),
        *("--training_data=train.csv", "--validation_data=train.csv", "--minibatch_size=10"),
        *("--num_epochs=2", "--summary=summary.json"),
    ]

    done = in_process("train", *words, cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "summary.json").read_text())["metrics"]["auc"] > 0.95


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            "K.sum(x, axis=1)",
            r"broken\d.py:7: write keras.ops.sum, which take symbolic tensors",
        ),
        ("tf.reduce_sum(tf.square(x), axis=1)", "write keras.ops.sum and keras.ops.square"),
        (
            "tf.math.cumulative_logsumexp(x)",
            "write it with keras.ops, or put it into the call",
        ),
        ("tf.keras.layers.DenseFeatures([])(x)", "Keras 3 has no feature columns"),
    ],
)
def test_a_call_that_keras_3_lacks_is_answered_with_what_to_write(tmp_path, body, says, request):
    from elasticdl.packages.keras.model.placed import _make

    name = f"broken{abs(hash(body)) % 1000}"
    text = f"""
import tensorflow as tf
from tensorflow.keras import backend as K

def custom_model():
    x = tf.keras.Input((4,), name="x")
    y = {body}
    return tf.keras.Model(x, y)

def feed(dataset, mode, metadata): return dataset
"""
    spec = load(tmp_path, text, name)

    with pytest.raises(ModelError, match=says.replace(r"\d", r"\d+")):
        _make(spec.model)


def test_the_old_name_of_a_learning_rate_is_told(tmp_path):
    from elasticdl.packages.keras.optimizer import make_optimizer

    text = """
import tensorflow as tf
def custom_model(): pass
def feed(dataset, mode, metadata): return dataset
def optimizer(lr=0.1): return tf.keras.optimizers.Adam(lr=lr)
"""
    spec = load(tmp_path, text, "old_optimizer")

    with pytest.raises(ModelError, match=r"old_optimizer.py:5: write learning_rate= instead of lr"):
        make_optimizer(spec.optimizer)


def test_all_lines_of_a_model_function_that_keras_3_lacks_are_told_at_once(tmp_path):
    from elasticdl.packages.keras.model.placed import _make

    text = """
import tensorflow as tf
from tensorflow.keras import backend as K

def custom_model():
    x = tf.keras.Input((4,), name="x")
    y = tf.reshape([x, x], (-1, 8))
    y = tf.keras.layers.Dense(1)(y)
    z = K.sum(K.square(y))
    return tf.keras.Model(x, keras.ops.relu(z))

def feed(dataset, mode, metadata): return dataset
"""
    spec = load(tmp_path, text, "all_lines")

    says = r"all_lines.py:7: write keras.ops.reshape, .*function, too: 9: K.sum, K.square$"
    with pytest.raises(ModelError, match=says):
        _make(spec.model)


def test_a_folder_that_is_imported_by_its_own_name_is_told(tmp_path):
    zoo = tmp_path / "my_zoo"
    zoo.mkdir()
    (zoo / "fields.py").write_text("")
    (zoo / "outer.py").write_text("from my_zoo.fields import X\n")

    with pytest.raises(ModelError, match=r"imports 'my_zoo'.* is imported without 'my_zoo'"):
        load_model_spec(ModelSection(model_zoo=zoo, model_def="outer.custom_model"))
