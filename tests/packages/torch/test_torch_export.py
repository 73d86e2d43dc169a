"""What an export of a PyTorch model has, and what `torch.export` makes of its layers."""

import json

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch import nn  # noqa: E402  # after the skip

from elasticdl.layers.torch import Embedding, EmbeddingBag  # noqa: E402  # as above
from elasticdl.packages.torch.served import TorchServed  # noqa: E402  # as above

pytestmark = pytest.mark.torch


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = Embedding(None, 3, padding_idx=0)
        self.bags = EmbeddingBag(50, 3, mode="mean", padding_idx=0, name="words")
        self.norm = nn.BatchNorm1d(6)
        self.out = nn.Linear(6, 1)

    def forward(self, features):
        rows = self.items(features["item"].to(self.items.weight.device)).flatten(1)
        bags = self.bags(features["words"])
        return {"score": self.out(self.norm(torch.cat([rows, bags], 1)))}


class Deciding(Model):
    def forward(self, features):
        out = super().forward(features)
        return out if float(out["score"].detach().sum()) > 1e9 else {"score": out["score"] + 1}


class Counting(Model):
    """Counts its steps in a buffer that `state_dict` does not have."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1), persistent=False)

    def forward(self, features):
        if self.training:
            self.steps += 1
        return {"score": super().forward(features)["score"] + self.steps}


class Plain(nn.Module):
    """Has no tables."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 1)

    def forward(self, features):
        return {"score": self.out(features["words"].float())}


def feed(dataset, mode, metadata):
    x = {name: dataset.columns[name] for name in ("item", "words")}
    return x if mode == Mode.PREDICTION else (x, dataset.columns["y"])


class Halved(Model):
    def forward(self, features):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(features)


def loss(labels, predictions):
    return nn.functional.mse_loss(predictions["score"].float(), labels)


@pytest.fixture
def columns():
    rng = np.random.default_rng(0)
    return {
        "item": rng.integers(2**40, size=(48, 1)) * rng.integers(2, size=(48, 1)),
        "words": rng.integers(50, size=(48, 4)),
        "y": rng.normal(size=(48, 1)).astype(np.float32),
    }


@pytest.fixture
def export(new_torch_job, columns, tmp_path):
    """Return a function that trains a model, exports it, and returns predictions before."""

    jobs = []

    def rows(ids):
        """Return what the store has for the ids of each table."""
        sites = [(table, part.numpy()) for table, part in enumerate(ids)]
        return [torch.from_numpy(r) for r in jobs[0].client.pull(sites, training=False).rows]

    def make(model=Model, beside=False):
        job = new_torch_job(
            columns, 16, model=model, feed=feed, loss=loss,
            optimizer=lambda p: torch.optim.Adam(p, lr=0.05),
        )  # fmt: skip
        job.train(columns, 16)
        minibatch = next(job.backend.minibatches(_records(columns), Mode.PREDICTION, 48, 0))
        given = job.given(minibatch, training=False)
        outputs = job.backend.predict_step(minibatch, given.rows, given.dense, given.state)
        jobs.append(job)
        if beside:
            job.backend.export(tmp_path, *job.parameters(), None)
        else:
            job.export(tmp_path)
        return minibatch.features, outputs["score"]

    make.rows = rows
    return make


def _records(columns):
    from elasticdl.data.base import Records

    return iter([Records(0, columns=columns)])


def test_the_program_gives_the_predictions_of_the_job(export, tmp_path):
    features, expected = export()

    program = torch.export.load(tmp_path / "model.pt2").module()

    np.testing.assert_allclose(program(features)["score"].detach(), expected, atol=1e-6)
    few = {name: values[:3] for name, values in features.items()}
    np.testing.assert_allclose(program(few)["score"].detach(), expected[:3], atol=1e-6)


def test_tables_are_sorted_ids_and_rows_and_the_rest_a_state_dict(export, tmp_path, columns):
    safetensors = pytest.importorskip("safetensors.torch")
    export()

    weights = safetensors.load_file(tmp_path / "model.safetensors")
    items = safetensors.load_file(tmp_path / "tables" / "items.safetensors")
    words = safetensors.load_file(tmp_path / "tables" / "words.safetensors")

    assert sorted(weights) == [
        "norm.bias", "norm.num_batches_tracked", "norm.running_mean", "norm.running_var",
        "norm.weight", "out.bias", "out.weight",
    ]  # fmt: skip
    assert weights["norm.num_batches_tracked"] == 3
    assert items["keys"].tolist() == np.unique(columns["item"]).tolist()
    assert items["rows"].shape == (len(items["keys"]), 3)
    assert not items["rows"][0].any()  # of the padding
    assert words["keys"].tolist() == np.unique(columns["words"]).tolist()


class WithConstants(Model):
    """Has buffers of types that NumPy, or PyTorch on the CPU, knows little of."""

    def __init__(self, *types):
        super().__init__()
        for dtype in types:
            self.register_buffer(f"of_{dtype}".replace(".", "_"), torch.ones(3).to(dtype))


def test_buffers_of_rare_types_are_exported(export, tmp_path):
    types = (torch.uint16, torch.float8_e4m3fn, torch.bfloat16, torch.complex64, torch.bool)
    export(lambda: WithConstants(*types))
    assert (tmp_path / "model.pt2").exists()


def test_a_type_that_a_file_cannot_hold_is_refused_before_training(new_torch_job, columns):
    job = new_torch_job(
        columns, 16, model=lambda: WithConstants(torch.complex128), feed=feed, loss=loss,
        optimizer=lambda p: torch.optim.Adam(p),
    )  # fmt: skip
    with pytest.raises(
        ModelError, match=r"state 'of_torch_complex128' is torch\.complex128, which"
    ):
        job.backend.check_export(False)


def test_rows_beside_the_model_are_looked_up_by_whoever_serves_it(export, tmp_path):
    features, expected = export(beside=True)

    ids = torch.export.load(tmp_path / "ids.pt2").module()(features)
    score = torch.export.load(tmp_path / "score.pt2").module()
    said = json.loads((tmp_path / "model.json").read_text())
    assert said["lookups"] == ["items", "words"]
    assert [(t["name"], t["dim"], t["unseen"], t["input_dim"]) for t in said["tables"]] == [
        ("items", 3, 0.0, None),
        ("words", 3, 0.0, 50),
    ]
    rows = export.rows(ids)
    np.testing.assert_allclose(score(features, rows)["score"].detach(), expected, atol=1e-6)
    few = {name: values[:3] for name, values in features.items()}
    parts = [part[:3] for part in rows]
    np.testing.assert_allclose(score(few, parts)["score"].detach(), expected[:3], atol=1e-6)
    with np.load(tmp_path / "dense.npz") as arrays:
        assert {name: list(array.shape) for name, array in arrays.items()} == {
            **said["dense"], **said["state"],
        }  # fmt: skip


def test_a_served_model_gives_half_precision_as_float32(export, tmp_path):
    features, expected = export(Halved, beside=True)

    served = TorchServed(tmp_path)
    given = {name: values.numpy() for name, values in features.items()}
    rows = [part.numpy() for part in export.rows(map(torch.from_numpy, served.ids(given)))]
    found = served.score(given, rows)["score"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-2)


def test_a_model_without_tables_is_served(export, tmp_path):
    features, expected = export(Plain, beside=True)

    served = TorchServed(tmp_path)
    given = {name: values.numpy() for name, values in features.items()}
    assert served.ids(given) == []
    np.testing.assert_allclose(served.score(given, [])["score"], expected, atol=1e-6)


def test_a_version_is_served_with_all_of_its_buffers(export, tmp_path):
    features, expected = export(Counting, beside=True)

    served = TorchServed(tmp_path)
    said = json.loads((tmp_path / "model.json").read_text())
    with np.load(tmp_path / "dense.npz") as arrays:
        values = {name: array.astype(np.float32).ravel() for name, array in arrays.items()}
    values["steps"] += 2
    kinds = [np.concatenate([values[name] for name in said[kind]]) for kind in ("dense", "state")]
    served.set_parameters(*kinds)
    given = {name: values.numpy() for name, values in features.items()}
    rows = [part.numpy() for part in export.rows(map(torch.from_numpy, served.ids(given)))]
    np.testing.assert_allclose(served.score(given, rows)["score"], expected + 2, atol=1e-5)


def test_rows_beside_a_model_that_torch_export_cannot_trace_are_refused(export):
    with pytest.raises(ModelError, match=r"cannot make it for this model .*; leave the rows"):
        export(Deciding, beside=True)


def test_a_model_that_torch_export_cannot_trace_is_exported_without_a_program(export, tmp_path):
    export(Deciding)

    notes = json.loads((tmp_path / "elasticdl.json").read_text())
    assert notes["program"] is None
    assert notes["why_no_program"]
    assert not (tmp_path / "model.pt2").exists()
    assert (tmp_path / "model.safetensors").exists()


def test_another_model_than_the_exported_is_refused(export, tmp_path, spec_of, columns):
    from elasticdl.backends.load import load_saved_model

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.other = Embedding(None, 3)

        def forward(self, features):
            return self.other(features["item"])

    class Wider(Model):
        def __init__(self):
            super().__init__()
            self.more = nn.Linear(1, 1)

    export()
    for model, message in (
        (Other, r"has the tables \['items', 'words'\], the model .* \['other'\]"),
        (Wider, r"differ: \['more.bias', 'more.weight'\] are in one of them alone"),
    ):
        predictor = load_saved_model(spec_of(model=model, feed=feed), Metadata(), tmp_path, 1)
        sample = next(predictor.minibatches(_records(columns), Mode.PREDICTION, 16, 0))
        with pytest.raises(ModelError, match=message):
            predictor.check(sample)


def test_an_export_in_pytorch_needs_a_model_in_pytorch(export, tmp_path, spec_of):
    from elasticdl.backends.load import load_saved_model

    export()
    with pytest.raises(ModelError, match=r"is an export of PyTorch, but .* builtins.int"):
        load_saved_model(spec_of(model=lambda: 5, feed=feed), Metadata(), tmp_path, 1)
