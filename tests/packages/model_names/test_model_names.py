"""Names of other programs at the top of a model file, or as flags, that are meant for a job."""

from pathlib import Path

import pytest

from elasticdl.cli.flags import unknown_flag
from elasticdl.errors import ModelError
from elasticdl.packages.model_names.check import check_names
from elasticdl.settings.model import ModelSection

OWN = ModelSection(model_def="zoo.forward").functions()
FILE = """
import keras
def forward(): ...
def loss(labels, predictions): ...
def optimizer(lr=0.1): ...
def feed(dataset, mode, metadata): ...
"""
DICT_LOSS = FILE.replace("def loss(labels, predictions): ...", 'loss = {"a": "mse", "b": "mae"}')


@pytest.fixture
def check(tmp_path):
    """Check a file of some text."""

    def of(text, **others):
        for name, other in others.items():
            (tmp_path / f"{name}.py").write_text(other)
        path = tmp_path / "model.py"
        path.write_text(text)
        check_names(path, OWN, {"forward", "dataset_fn"})

    return of


@pytest.mark.parametrize(
    "name",
    [
        "auto_scale_loss", "batch_size", "class_weight", "epochs", "initial_epoch", "jit_compile",
        "learning_rate", "loss_weights", "metrics", "minibatch_size", "num_epochs", "run_eagerly",
        "sample_weight", "shuffle", "steps_per_epoch", "steps_per_execution",
        "validation_batch_size", "validation_data", "validation_freq", "validation_split",
        "validation_steps", "verbose", "weighted_metrics", "x", "y",
    ],
)  # fmt: skip
def test_what_compile_and_fit_take_is_refused_with_what_says_it_here(check, name):
    with pytest.raises(
        ModelError, match=rf"model.py:7: {name} at the top .* read by no job; [-\w]"
    ):
        check(FILE + f"{name} = 3\n")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("class_weights = {0: 1.0}", "give sample weights"),
        ("lossWeights = {'a': 1.0}", "loss_weights = "),
        ("loss_weight = {'a': 1.0}", "loss_weights = "),
        ("def loss_weights(): return {'a': 1.0}", "loss_weights = "),
        ("def sample_weights(record): return 1", "give sample weights"),
        ("metric = ['auc']", "eval_metrics_fn"),
        ("num_epoch = 3", "--num_epochs"),
        ("step_per_epoch = 3", "an epoch is all records"),
        ("lr = 0.5", "--learning_rate"),
        ("def lr_schedule(epoch): return 0.1", "keras.optimizers.schedules"),
    ],
)
def test_what_is_nearly_a_name_of_keras_is_refused_alike(check, line, says):
    with pytest.raises(
        ModelError, match=rf"model.py:7: \w+ at the top .* read by no job; .*{says}"
    ):
        check(DICT_LOSS + line)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("def callback(): return []", "callbacks"),
        ("def get_callbacks(): return []", "callbacks"),
        ("callback = []", "callbacks"),
        ("def eval_metrics(): return {}", "eval_metrics_fn"),
        ("def eval_metric_fn(): return {}", "eval_metrics_fn"),
        ("def metrics_fn(): return {}", "eval_metrics_fn"),
        ("def weighted_metric_fn(): return {}", "weighted_metrics_fn"),
        ("class PredictionOutputProcessor: ...", "PredictionOutputsProcessor"),
        ("def custom_reader(path): ...", "custom_data_reader"),
        ("def data_reader(path): ...", "custom_data_reader"),
    ],
)
def test_a_name_that_is_nearly_one_of_ours_is_refused_with_it(check, line, wanted):
    with pytest.raises(ModelError, match=rf"model.py:7: .* looks for {wanted}; rename it"):
        check(FILE + line)


@pytest.mark.parametrize(
    ("old", "new"),
    [("optimizer", "optimiser"), ("loss", "loss_fn"), ("loss", "criterion"), ("feed", "Feed")],
)
def test_a_needed_function_under_another_name_is_refused_with_its_own(check, old, new):
    with pytest.raises(ModelError, match=rf"{new} is read by no job, which looks for {old};"):
        check(FILE.replace(f"def {old}", f"def {new}"))


@pytest.mark.parametrize(
    "text",
    [
        FILE,
        FILE + "BATCH_SIZE = 64\nEPOCHS = 3\n",
        FILE + "epochs = 3\ndef rate(epoch): return 0.1 / epochs\n",
        FILE + "batch_size = 32\nsteps = 640 // batch_size\n",
        FILE + "_epochs = 3\n",
        FILE + "from keras import metrics\n",
        FILE + "metrics = [1]\ndef eval_metrics_fn(): return metrics\n",
        FILE + "def callback(): return []\ndef callbacks(): return callback()\n",
        FILE + "def loss_fn(a, b): ...\n",  # the file has a loss
        FILE + "def shuffle(dataset): ...\n",
        FILE + "epochs = 3\nprint(globals())\n",
        FILE + "loss_weights = [1, 2]\ndef other(): return loss_weights\n",
        DICT_LOSS + 'loss_weights = {"a": 1.0, "b": 0.5}\n',
        FILE.replace("def feed", "def dataset_fn"),
        FILE + "def eval_metrics_fn(): ...\ndef callbacks(): ...\n",
        FILE + "callbacks = None\n",
    ],
)
def test_what_is_used_or_the_files_own_is_taken(check, text):
    check(text)


def test_a_star_of_another_file_of_the_zoo_counts_as_the_file_itself(check):
    text = "from base import *\n"
    check(text, base=FILE + "epochs = 3\nrate = 1 / epochs\n")
    check(text + "loss = ['mse', 'mae']\nloss_weights = [1.0, 0.5]\n", base=FILE)
    check(text + "print(epochs)\n", base=FILE + "epochs = 3\n")
    with pytest.raises(ModelError, match="epochs at the top"):
        check(text, base=FILE + "epochs = 3\n")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("callbacks = []", "callbacks"),
        ('optimizer = "adam"', "optimizer"),
        ('eval_metrics_fn = {"mse": "mse"}', "eval_metrics_fn"),
    ],
)
def test_a_value_where_a_function_is_called_is_refused(check, line, name):
    text = FILE.replace("def optimizer(lr=0.1): ...", "") if name == "optimizer" else FILE
    with pytest.raises(ModelError, match=rf"expected a function {name}, found .*def {name}\(\)"):
        check(text + line)


@pytest.mark.parametrize("name", ["loss_weights", "scheduler", "jit_compile", "epochs"])
def test_a_file_of_pytorch_is_told_what_is_for_it(check, name):
    with pytest.raises(ModelError, match=f"{name} at the top"):
        check(DICT_LOSS.replace("keras", "torch") + f"{name} = 3\n")


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted((Path(__file__).parents[3] / "model_zoo").rglob("*.py"))
        if not path.name.startswith(("test_", "conftest"))
    ],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_our_own_models_are_taken(path):
    check_names(path, OWN, {"forward", "custom_model", "dataset_fn"})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("batch_size", "--minibatch_size"),
        ("class_weight", "give sample weights as the third element of feed"),
        ("epochs", "--num_epochs"),
        ("initial_epoch", "--checkpoint_dir_for_init"),
        ("jit_compile", "tf.function(jit_compile=True)"),
        ("loss_weights", "add the weighted losses"),
        ("lr", "--learning_rate"),
        ("steps_per_epoch", "an epoch is all records"),
        ("steps_per_execution", "steps overlap by themselves"),
        ("validation_batch_size", "--minibatch_size"),
        ("validation_freq", "--evaluation_steps"),
        ("validation_steps", "--evaluation_minibatches"),
        ("verbose", "--summary"),
    ],
)
def test_a_setting_of_keras_is_answered_with_what_says_it_here(name, says):
    found = unknown_flag("train", f"--{name}")
    assert found.startswith(f"unknown flag --{name} (of Keras); here: ")
    assert says in found
