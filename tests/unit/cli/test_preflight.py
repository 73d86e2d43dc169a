"""What is found wrong before a job starts, without importing the user's file."""

import os

import pytest

from elasticdl.backends.known import known
from elasticdl.cli import preflight
from elasticdl.cli.flags import build_config
from elasticdl.cli.model_file import has_tables
from elasticdl.cli.preflight import check, defined_names
from elasticdl.errors import CheckpointError, ConfigError, DataError, ModelError

MODEL = """
import no_such_framework

def forward():
    return no_such_framework.Model()

def optimizer(lr=0.1): ...
def feed(dataset, mode, metadata): ...
def eval_metrics_fn(): ...
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model file and a line of text to train on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo" / "mnist").mkdir(parents=True)
    (tmp_path / "zoo" / "mnist" / "model.py").write_text(MODEL)
    (tmp_path / "data.csv").write_text("1,2\n")
    (tmp_path / "none").mkdir()
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "model.npz").touch()
    return tmp_path


def config(command="train", **words):
    words = {"model_zoo": "zoo", "model_def": "mnist.model.forward"} | words
    data = {"train": "training", "evaluate": "validation", "predict": "prediction"}[command]
    words = {f"{data}_data": "data.csv"} | words
    if command != "train":
        words = {"saved_model": "saved"} | words
    return build_config(command, words)


@pytest.mark.parametrize(
    ("command", "words"),
    [("train", {}), ("evaluate", {}), ("predict", {"output": "predictions"})],
)
def test_a_job_that_can_work_passes_without_its_framework(place, command, words):
    before = sorted(place.rglob("*"))
    check(config(command, **words))
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("flag", ["dashboard_port", "metrics_port"])
@pytest.mark.parametrize("package", ["aiohttp", "prometheus_client"])
def test_a_port_needs_all_packages_of_its_server(place, monkeypatch, flag, package):
    monkeypatch.setattr(preflight, "is_missing", lambda name: name == package)
    words = {flag: "0", "distribution_strategy": "ParameterServerStrategy"}
    with pytest.raises(ConfigError, match=rf"--{flag} needs a package that is missing \({package}"):
        check(config(**words))


def test_a_package_may_hold_the_functions_itself(place):
    (place / "zoo" / "mnist" / "__init__.py").write_text(MODEL)
    check(config(model_def="mnist.forward"))


@pytest.mark.parametrize(
    ("words", "error", "complaint"),
    [
        ({"model_zoo": "zo"}, ConfigError, "--model_zoo: expected a folder, found none at zo"),
        ({"model_def": "forward"}, ModelError, "expected package.module.function"),
        ({"model_def": "mnist..forward"}, ModelError, "expected package.module.function"),
        (
            {"model_def": "zoo/mnist/model.py"},
            ModelError,
            "of this file say --model_zoo=zoo/mnist --model_def=model.FUNCTION",
        ),
        (
            {"model_zoo": "zo", "model_def": "zoo.mnist.model.forward"},
            ConfigError,
            "found none at zo; of zoo/mnist/model.py in this folder say --model_zoo=.",
        ),
        (
            {"model_def": "mnist.modle.forward"},
            ModelError,
            r"expected the file zoo/mnist/modle.py, found none; did you mean mnist.model.forward\?",
        ),
        (
            {"model_def": "mnist.model.foward"},
            ModelError,
            r"model.py: expected a function 'foward' .--model_def., found none; "
            r"did you mean 'forward'\?",
        ),
        ({"feed": "fed"}, ModelError, r"expected a function 'fed' or 'dataset_fn' .--feed."),
        ({"optimizer": "sgd"}, ModelError, r"expected a function 'sgd' .--optimizer."),
        ({"model_params": "units"}, ModelError, "--model_params: expected name=value"),
        ({"training_data": "nowhere"}, DataError, "--training_data: nowhere: no such file"),
        ({"training_data": "*.rec"}, DataError, r"--training_data: \*.rec: no file matches"),
        ({"training_data": "none"}, DataError, "--training_data: none: this folder has no data"),
        ({"data_reader_params": "colour=1"}, ConfigError, "--data_reader_params"),
        ({"checkpoint_dir_for_init": "none"}, CheckpointError, "expected a checkpoint"),
        ({"output": "zoo"}, ConfigError, "--output: expected a folder that is new or empty"),
        ({"output": "data.csv"}, ConfigError, "--output: expected a folder, found the file"),
        ({"output": "data.csv/x"}, ConfigError, "--output: expected a folder, found the file"),
        ({"job_dir": "zoo"}, ConfigError, "--job_dir: expected a folder that is new or empty"),
        ({"checkpoint_dir": "data.csv"}, ConfigError, "--checkpoint_dir: expected a folder"),
        ({"summary": "zoo"}, ConfigError, "--summary: expected a file name, found a folder"),
        ({"summary": "data.csv/s.json"}, ConfigError, "--summary: expected a folder"),
        (
            {"output": "out", "summary": "out/s.json"},
            ConfigError,
            "--summary=out/s.json is in the folder of --output=out",
        ),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(place, words, error, complaint):
    before = sorted(place.rglob("*"))
    with pytest.raises(error, match=complaint):
        check(config(**words))
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ("nowhere", "found none"),
        ("data.csv", "found a file"),
        ("empty", "found an empty folder"),
        ("zoo", "found mnist"),
        ("versions", "found one in a folder of it; did you mean versions/1"),
        ("checkpoints", "found a checkpoint, which is given as --checkpoint_dir_for_init"),
        ("exports", "found versions of --export_dir, with which elasticdl serve answers"),
        ("beside", "expected an export with its rows inside"),
    ],
)
def test_what_is_no_exported_model_is_told_by_what_it_is(place, found, says):
    (place / "empty").mkdir()
    make(place, "versions/1/model.npz", "checkpoints/version-00000003/manifest.json")
    make(place, "exports/version-00000001/manifest.json", "exports/CURRENT")
    make(place, "beside/tables/manifest.json", "beside/tables/_SUCCESS", "beside/model.json")
    with pytest.raises(ModelError, match=f"--saved_model={found}: .*{says}"):
        check(config("evaluate", saved_model=found))


@pytest.mark.parametrize("file", [file for each in known().values() for file in each.export_files])
def test_a_model_of_each_framework_is_an_exported_one_and_no_checkpoint(place, file):
    make(place, f"model/{file}")
    check(config("evaluate", saved_model="model"))
    for command, says in (("evaluate", "give it as --saved_model"), ("train", "training goes on")):
        words = {"saved_model": None, "checkpoint_dir_for_init": "model"}
        with pytest.raises(ConfigError, match=f"expected a checkpoint, found an exported.*{says}"):
            check(config(command, **words))


def make(place, *files):
    for file in files:
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).touch()


def test_an_evaluation_needs_metrics_where_there_is_no_loss(place):
    (place / "zoo" / "mnist" / "model.py").write_text(MODEL.replace("eval_metrics_fn", "measures"))
    check(config("train"))
    with pytest.raises(ModelError, match=r"'eval_metrics_fn' or 'weighted_metrics_fn' .--eval"):
        check(config("evaluate"))  # an export has no loss
    of_checkpoint = {"saved_model": None, "checkpoint_dir_for_init": "none"}
    with pytest.raises(ModelError, match=r"'weighted_metrics_fn' or 'loss' .--eval_metrics_fn"):
        check(config("evaluate", **of_checkpoint))
    with (place / "zoo" / "mnist" / "model.py").open("a") as file:
        file.write("def loss(labels, predictions): ...\n")
    with pytest.raises(CheckpointError, match="expected a checkpoint"):
        check(config("evaluate", **of_checkpoint))


def test_predictions_need_somewhere_to_go(place):
    with pytest.raises(ConfigError, match="elasticdl predict needs --output"):
        check(config("predict"))
    with (place / "zoo" / "mnist" / "model.py").open("a") as file:
        file.write("class PredictionOutputsProcessor: ...\n")
    check(config("predict"))
    with pytest.raises(ConfigError, match="PredictionOutputsProcessor, which takes the pred"):
        check(config("predict", output="predictions"))


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("train", "callbacks"),
        ("train", "eval_metrics_fn"),
        ("train", "custom_data_reader"),
        ("evaluate", "weighted_metrics_fn"),
        ("predict", "prediction_outputs_processor"),
    ],
)
def test_a_name_that_was_asked_for_must_be_there(place, command, flag):
    words = {"output": "predictions"} if command == "predict" else {}
    with pytest.raises(ModelError, match=rf"model.py: expected a function 'typo' .--{flag}"):
        check(config(command, **words, **{flag: "typo"}))


def test_data_of_the_users_own_reader_is_the_readers_business(place):
    with (place / "zoo" / "mnist" / "model.py").open("a") as file:
        file.write("def custom_data_reader(**settings): ...\n")
    check(config(training_data="sql://anything"))


def test_a_file_that_is_not_python_is_named_with_the_line(place):
    (place / "zoo" / "mnist" / "model.py").write_text("def forward():\n    return (\n")
    with pytest.raises(ModelError, match=r"model\.py:2: '\(' was never closed"):
        check(config())


def test_a_closed_folder_is_named(place, monkeypatch):
    (place / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # to root nothing is closed
    with pytest.raises(ConfigError, match="--output: expected a folder to write in"):
        check(config(output="closed/model"))


@pytest.mark.parametrize(
    ("flag", "make"),
    [
        ("output", lambda place: "/sys/made/by/the/kernel"),
        ("checkpoint_dir", lambda place: place / ("name" * 100)),
        ("tensorboard_log_dir", lambda place: place / "data.csv" / "logs"),
        ("job_dir", lambda place: place / "leads_nowhere"),
    ],
)
def test_a_folder_that_cannot_be_made_is_named_before_anything_starts(place, flag, make):
    if flag == "tensorboard_log_dir":
        pytest.importorskip("elasticdl.packages.trackers")
    (place / "leads_nowhere").symlink_to(place / "gone" / "too")
    with pytest.raises(ConfigError, match=f"--{flag}: expected a folder"):
        check(config(**{flag: str(make(place))}))


@pytest.mark.parametrize("name", ["zoo", "gone/state", "data.csv/state"])
def test_a_journal_that_no_master_could_open_is_named_before_anything_starts(place, name):
    words = {"distribution_strategy": "ParameterServerStrategy", "num_ps_pods": "1"}
    with pytest.raises(ConfigError, match="--state: expected a file in a folder that is there"):
        check(config(state=f"sqlite://{place / name}", **words))
    check(config(state=f"sqlite://{place / 'state'}", **words))


TABLES = {
    "from elasticdl.layers import Embedding\ndef forward(): return Embedding(8)": True,
    "import elasticdl.layers as layers\ndef forward(): return layers.Embedding(8)": True,
    "from elasticdl.layers.torch import EmbeddingBag\n"
    "class Net:\n    def __init__(self): self.table = EmbeddingBag(8)\n"
    "def forward(): return Net()": True,
    "from elasticdl.preprocessing.tabular import Category, Table\nTABLE = Table([])\n"
    "def forward(): return TABLE.encode(TABLE.inputs()).linear()": True,
    "from elasticdl.preprocessing.tabular import *\nT = Table([])\n"
    "def forward(): return T.encode(1).flat(4)": True,
    "from elasticdl.preprocessing import tabular\nT = tabular.Table([])\n"
    "def forward(): return T.encode(1).flat(4)": True,
    "from elasticdl.layers import *\ndef forward(): return Embedding(8)": True,
    "from elasticdl.layers import *\nfrom keras.layers import *\n"
    "def forward(): return Embedding(9, 8)": None,
    "import numpy\nfrom elasticdl.layers import Embedding\ndef other(): return Embedding(8)\n"
    "def forward(): return numpy.zeros(1)": False,
    "import keras\ndef forward(): return keras.layers.Embedding(10**9, 8)": None,
    "from mine import layers\ndef forward(): return layers.make()": None,
    "from elasticdl.layers import Embedding\nimport keras\ndef forward(small=True):\n"
    "    if small: return keras.layers.Dense(1)\n    else: return Embedding(8)": None,
}


@pytest.mark.parametrize("source", TABLES)
def test_tables_of_a_model_are_seen_in_its_file_where_they_are_sure(tmp_path, source):
    (tmp_path / "model.py").write_text(source)
    assert has_tables(tmp_path / "model.py", "forward") is TABLES[source]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a = b = 1; (c, *d), e.f = 2, 3; g: int = 4", {"a", "b", "c", "d", "e", "g"}),
        ("from x import y as z\nimport p.q", {"z", "p"}),
        ("if x:\n  def a(): ...\nelse:\n  b = 1", {"a", "b"}),
        ("try:\n  import a\nexcept ImportError:\n  a2 = 1\nfinally:\n  c = 1", {"a", "a2", "c"}),
        ("for i in x:\n  a = i\nwith y as f:\n  class B: ...", {"a", "B"}),
        ("async def a(): b = 1", {"a"}),
        ("from x import *", None),
        ("def __getattr__(name): ...", None),
    ],
)
def test_names_are_found_wherever_a_module_may_define_them(tmp_path, source, names):
    (tmp_path / "m.py").write_text(source)
    assert defined_names(tmp_path / "m.py") == names
