"""What jobs in PyTorch export predicts the same without elasticdl.

`test_framework_jobs.py` has what it is that they train.
"""

import json
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.elastic.running_job import elasticdl, run, serving
from tests.elastic.synthetic import write_flights

pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"
MODEL = (f"--model_zoo={ZOO}", "--model_def=flights.deepfm_torch.forward", "--minibatch_size=512")
NUM_TRAINING, NUM_VALIDATION = 20_000, 5_000

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

# Nothing of elasticdl can be imported here.
SCORE = """
import sys
import urllib.request
sys.modules["elasticdl"] = None
import numpy as np
import torch
program = torch.export.load(sys.argv[1]).module()
ids = torch.from_numpy(np.load(sys.argv[2]))
np.save(sys.argv[3], program(ids).detach().numpy())
"""

SCORE_BESIDE = """
import sys
import urllib.request
sys.modules["elasticdl"] = None
import json
import numpy as np
import pyarrow.parquet
import torch
folder, ids_file, out = sys.argv[1:]
said = json.load(open(f"{folder}/model.json"))
features = torch.from_numpy(np.load(ids_file))

def look_up(name, ids):
    unseen = next(table["unseen"] for table in said["tables"] if table["name"] == name)
    table = pyarrow.parquet.read_table(f"{folder}/tables/{name}").sort_by("key")
    keys, weights = table["key"].to_numpy(), np.stack(table["weights"].to_numpy())
    place = np.searchsorted(keys, ids).clip(max=len(keys) - 1)
    return np.where((keys[place] == ids)[..., None], weights[place], np.float32(unseen))

ids = torch.export.load(f"{folder}/ids.pt2").module()(features)
rows = [
    torch.from_numpy(look_up(name, part.numpy())) for name, part in zip(said["lookups"], ids)
]
score = torch.export.load(f"{folder}/score.pt2").module()
np.save(out, score(features, rows).detach().numpy())
"""


def run_job(folder, command, *words, **flags):
    """Run a command on the model, to its end."""
    return run(elasticdl(command, *MODEL, *words, **flags), cwd=folder)


def train(folder, output, *words):
    """Train with two ps replicas; return the summary."""
    strategy = ("--distribution_strategy=ParameterServerStrategy", "--num_ps_pods=2")
    data = ("--training_data=train.recordio", "--validation_data=validation.recordio")
    flags = {"output": output, "summary": folder / "summary.json", "job_dir": f"job-{output}"}
    run_job(folder, "train", *data, *strategy, *words, **flags)
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch-export")
    write_flights(folder, NUM_TRAINING, NUM_VALIDATION)
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    return train(folder, "export", "--checkpoint_dir=checkpoints")


@pytest.fixture(scope="module")
def predictions(trained, folder):
    """Return the predictions for the validation data, in order, from the checkpoint."""
    return predicted(folder, "from-checkpoint", "--checkpoint_dir_for_init=checkpoints")


def predicted(folder, output, *source):
    data = "--prediction_data=validation.recordio"
    run_job(folder, "predict", data, *source, output=output)
    parts = []
    for file in (folder / output).iterdir():
        with np.load(file) as arrays:
            parts.append(dict(arrays))
    records = np.concatenate([part["record"] for part in parts])
    order = np.argsort(records)
    np.testing.assert_array_equal(records[order], np.arange(NUM_VALIDATION))
    return np.concatenate([part["output"] for part in parts])[order]


def save_ids(folder, path):
    """Write what the model is given for the validation data."""
    from elasticdl import Mode
    from elasticdl._core import RecordReader
    from elasticdl.config import ModelSection
    from elasticdl.data.base import Metadata
    from elasticdl.model_spec import load_model_spec
    from elasticdl.packages.torch.feed import TaskRecords

    section = ModelSection(model_zoo=ZOO, model_def="flights.deepfm_torch.forward")
    records = RecordReader(folder / "validation.recordio").read(0, NUM_VALIDATION)
    feed = load_model_spec(section).feed
    np.save(path, feed(TaskRecords(records, {}), Mode.PREDICTION, Metadata()))


@pytest.fixture(scope="module")
def gone_on(trained, folder):
    """Train on at a rate that changes nothing; rows are exported beside the model."""
    source = "--checkpoint_dir_for_init=checkpoints"
    return train(folder, "beside", source, "--learning_rate=1e-12", "--output_tables=parquet")


def test_rows_that_lie_beside_the_model_give_the_same_predictions_without_elasticdl(
    gone_on, predictions, folder, tmp_path
):
    save_ids(folder, tmp_path / "ids.npy")
    files = [folder / "beside", tmp_path / "ids.npy", tmp_path / "out.npy"]
    run([sys.executable, "-c", SCORE_BESIDE, *map(str, files)])

    parts = [path.name for path in (folder / "beside" / "tables" / "vectors").iterdir()]
    assert sorted(parts) == ["part-00000-of-00002.parquet", "part-00001-of-00002.parquet"]
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), predictions, atol=1e-5)


def test_predictions_from_the_export_are_those_from_the_checkpoint(predictions, folder):
    found = predicted(folder, "from-export", "--saved_model=export")
    np.testing.assert_allclose(found, predictions, atol=1e-5)


def test_the_exported_program_predicts_the_same_without_elasticdl(predictions, folder, tmp_path):
    save_ids(folder, tmp_path / "ids.npy")

    files = [folder / "export" / "model.pt2", tmp_path / "ids.npy", tmp_path / "out.npy"]
    run([sys.executable, "-c", SCORE, *map(str, files)])

    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), predictions, atol=1e-5)


@pytest.mark.parametrize(
    "is_in_bucket", [False, pytest.param(True, marks=[pytest.mark.s3, pytest.mark.long])]
)
def test_what_is_served_scores_as_what_is_exported(folder, is_in_bucket, tmp_path, request):
    pytest.importorskip("aiohttp")
    exports = f"{request.getfixturevalue('s3')}/exports" if is_in_bucket else tmp_path / "exports"
    output = f"served-{is_in_bucket}"
    train(folder, output, f"--export_dir={exports}", "--export_every=20")
    save_ids(folder, tmp_path / "ids.npy")
    files = [folder / output / "model.pt2", tmp_path / "ids.npy", tmp_path / "out.npy"]
    run([sys.executable, "-c", SCORE, *map(str, files)])

    with serving(exports) as address:
        body = json.dumps({"instances": np.load(tmp_path / "ids.npy").tolist()}).encode()
        with urllib.request.urlopen(f"{address}/v1/predict", body, timeout=60) as answer:
            said = json.load(answer)

    online, offline = np.array(said["predictions"], np.float32), np.load(tmp_path / "out.npy")
    assert said["version"] > 1
    assert np.ptp(offline) > 0.1
    assert online.tobytes() == offline.tobytes()
