"""What the master process does before there is a master: it lists the data."""

import sys

import pytest

from elasticdl.errors import DataError
from elasticdl.job import Shard
from elasticdl.master.__main__ import load_data


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """A model zoo whose one model cannot be imported without being noticed."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "zoo"
    folder.mkdir()

    def write(source):
        name = f"model_{abs(hash(source))}"
        (folder / f"{name}.py").write_text(source)
        return {"model_zoo": folder, "model_def": f"{name}.forward"}

    return write


def write_lines(path, count):
    path.write_text("".join(f"{n}\n" for n in range(count)))
    return str(path)


def test_data_of_the_command_is_listed(master_kit, zoo, tmp_path):
    paths = {
        "training_data": write_lines(tmp_path / "train.txt", 5),
        "validation_data": write_lines(tmp_path / "valid.txt", 3),
        "prediction_data": write_lines(tmp_path / "predict.txt", 2),
    }
    model = zoo("raise ImportError('TensorFlow would be imported here')")

    def sizes(command):
        data = load_data(master_kit.config(command, **model, **paths))
        parts = (data.training, data.validation, data.prediction)
        return [sum(shard.num_records for shard in shards) for shards in parts]

    assert sizes("train") == [5, 3, 0]
    assert sizes("evaluate") == [0, 3, 0]
    assert sizes("predict") == [0, 0, 2]


def test_validation_data_is_optional(master_kit, zoo, tmp_path):
    path = write_lines(tmp_path / "train.txt", 5)
    config = master_kit.config(**zoo("pass"), training_data=path, validation_data="")
    assert load_data(config).validation == ()


def test_missing_data_is_named(master_kit, zoo, tmp_path):
    config = master_kit.config(**zoo("pass"), training_data=str(tmp_path / "nowhere.txt"))
    with pytest.raises(DataError, match="nowhere"):
        load_data(config)


def test_models_own_reader_is_used(master_kit, zoo):
    model = zoo(
        "from elasticdl.data.base import Metadata\n"
        "from elasticdl.job import Shard\n"
        "class Reader:\n"
        "    metadata = Metadata()\n"
        "    def shards(self): return [Shard('mine', 0, 7)]\n"
        "    def read(self, shard): return iter(())\n"
        "def custom_data_reader(*args, **kwargs): return Reader()\n"
        "def forward(): pass\n"
        "def feed(dataset, mode, metadata): pass\n"
    )
    config = master_kit.config(**model, training_data="anything", validation_data="")
    assert load_data(config).training == (Shard("mine", 0, 7),)
