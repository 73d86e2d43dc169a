"""Functions of model files of ElasticDL 0.x that took other arguments, and files of one zoo."""

import importlib
import re
import sys

import numpy as np
import pytest

from elasticdl.compat.earlier import is_odps_configured
from elasticdl.config import ModelSection
from elasticdl.errors import ModelError
from elasticdl.job import Mode, Shard, Task, TaskKind
from elasticdl.model_spec import ModelSpec, batched, is_batched, load_model_spec
from elasticdl.packages.earlier.model_files import MODEL_FILES, as_tensors, feed_of_three
from elasticdl.worker.predictions import Predicted, ProcessorSink


@pytest.fixture(autouse=True)
def forget():
    """Leave no module of a test's zoo behind."""
    path, before = [*sys.path], {*sys.modules}
    yield
    sys.path[:] = path
    for name in {*sys.modules} - before:
        if name.split(".")[0] in ("model_zoo", "census", "old"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("feed", "given"),
    [
        (lambda dataset: [dataset], ["records"]),
        (lambda dataset, mode: [dataset, mode], ["records", Mode.TRAINING]),
        (lambda dataset, mode, _: [dataset, mode, _], ["records", Mode.TRAINING, "names"]),
        (lambda *all_of_them: [*all_of_them], ["records", Mode.TRAINING, "names"]),
    ],
)
def test_a_feed_is_given_as_much_as_it_takes(feed, given):
    assert feed_of_three(feed)("records", Mode.TRAINING, "names") == given


def test_a_batched_feed_of_two_stays_batched():
    @batched
    def feed(records, mode):
        return records

    assert is_batched(feed_of_three(feed))
    assert feed_of_three(feed).__name__ == "feed"


class TestZoo:
    """Files that import each other by the name that the folder had in images of ElasticDL 0.x."""

    def load(self, zoo, text):
        (zoo / "census").mkdir(parents=True)
        (zoo / "census" / "features.py").write_text("WIDTH = 3\nONES = []\n")
        (zoo / "census" / "old.py").write_text(text)
        return load_model_spec(ModelSection(model_zoo=zoo, model_def="census.old.custom_model"))

    def test_a_file_is_one_module_by_both_names(self, tmp_path):
        text = """
from census import features
from model_zoo.census.features import WIDTH
from model_zoo.census import features as same
import model_zoo.census.features as again
def custom_model(): return WIDTH, features is same is again, features.__spec__.name
def feed(dataset): return dataset
"""
        spec = self.load(tmp_path / "of_any_name", text)

        assert spec.model() == (3, True, "census.features")
        assert importlib.import_module("model_zoo.census.old") is sys.modules["census.old"]

    def test_a_file_that_is_not_there_is_told(self, tmp_path):
        with pytest.raises(ModelError, match=r"imports 'model_zoo.census.nothing'"):
            self.load(tmp_path, "import model_zoo.census.nothing\n")

    def test_a_name_that_a_module_lacks_is_told_with_the_file(self, tmp_path):
        with pytest.raises(ModelError, match=r"old\.py: cannot import name 'DEPTH'"):
            self.load(tmp_path, "from model_zoo.census.features import DEPTH\n")

    def test_metrics_of_version_0_1_are_refused(self, tmp_path):
        text = """
def custom_model(): pass
def feed(dataset): return dataset
def eval_metrics_fn(predictions, labels): return {}
"""
        says = re.escape("eval_metrics_fn(predictions, labels) is called without arguments; let it")
        with pytest.raises(ModelError, match=rf"old\.py: {says}"):
            self.load(tmp_path, text)

    def test_a_writer_of_tables_is_refused_when_it_is_made(self, tmp_path, monkeypatch):
        text = """
from elasticdl.python.common.constants import MaxComputeConfig
from elasticdl.python.data.odps_io import ODPSWriter, is_odps_configured
def custom_model(): return MaxComputeConfig.ACCESS_KEY, ODPSWriter("project")
def feed(dataset): return dataset
"""
        spec = self.load(tmp_path, text)

        with pytest.raises(ModelError, match=r"ODPSWriter is of ElasticDL 0.x, .*: say --output"):
            spec.model()
        for name in ("PROJECT", "AK", "SK", "ENDPOINT"):
            assert not is_odps_configured()
            monkeypatch.setenv(f"MAXCOMPUTE_{name}", "x")
        assert is_odps_configured()


def test_a_processor_of_then_is_given_what_has_the_method_numpy(tmp_path):
    from elasticdl.compat.earlier import BasePredictionOutputsProcessor

    class Processor(BasePredictionOutputsProcessor):
        seen = ()

        def process(self, predictions, worker_id):
            self.seen += ((predictions["probs"].numpy().tolist(), worker_id),)

    given = ModelSpec(None, None, None, lambda dataset: dataset, None, None, Processor, None)
    processor = MODEL_FILES.adapted(given, "model.py").prediction_outputs_processor()
    outputs = {"probs": np.array([0.5, 0.25])}
    task = Task(1, TaskKind.PREDICTION, Shard("a", 0, 2))

    ProcessorSink(processor, worker_id=3).write(task, [Predicted(outputs, np.arange(2))])

    assert processor.seen == (([0.5, 0.25], 3),)
    assert type(as_tensors([np.zeros(2)])[0].numpy()) is np.ndarray


@pytest.mark.keras
class TestKeras:
    def test_bins_are_counted_and_saved(self):
        import keras
        import tensorflow as tf

        from elasticdl.preprocessing.earlier import Discretization

        layer = Discretization(bins=[1, 2, 5])
        inputs = keras.Input((1,))
        model = keras.Model(inputs, layer(inputs))

        copy = keras.Model.from_config(model.get_config())

        assert (layer.num_bins(), layer.bins) == (4, [1.0, 2.0, 5.0])
        assert copy(tf.constant([[0.0], [1.0], [9.0]])).numpy().ravel().tolist() == [0, 1, 3]
        assert copy.layers[1].num_bins() == 4

    @pytest.mark.parametrize(
        ("body", "records", "says"),
        [
            ("record[:-1]", ["1,2"], 'write record = tf.strings.split(record, ",")'),
            ("record[:-1]", {"a": [1], "b": [2]}, "of the columns a, b; write record = tf.stack("),
            ("record[0]", {"a": [1], "b": [2]}, "of the columns a, b; write record = tf.stack("),
            ("tf.strings.to_number(record)", {"a": [1]}, "columns a; write record = tf.stack("),
        ],
    )
    def test_a_feed_that_takes_a_record_for_its_fields_is_told_how_to_have_them(
        self, body, records, says
    ):
        import tensorflow as tf

        from elasticdl.data.base import Metadata
        from elasticdl.packages.keras.feed.records import RecordBatch
        from elasticdl.packages.keras.feed.user import UserFeed

        function = eval(f"lambda record: {body}", {"tf": tf})
        columns = records
        if isinstance(records, dict):
            columns = {name: np.array(values) for name, values in records.items()}
        else:
            columns = [line.encode() for line in records]
        feed = UserFeed(lambda dataset, *_: dataset.map(function), Mode.TRAINING, Metadata(), 1)

        with pytest.raises(ModelError, match=re.escape(says)):
            feed(RecordBatch(columns, np.arange(1)), feed.drawing())
