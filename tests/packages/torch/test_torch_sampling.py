"""Negatives that were sampled: logits are corrected wherever they are not trained."""

import numpy as np
import pytest

from elasticdl import Mode
from elasticdl.errors import ModelError

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from torch import nn  # noqa: E402  # after the skip

from elasticdl.layers.torch import SamplingCorrection  # noqa: E402  # as above

pytestmark = pytest.mark.torch
RATE = 0.1
DATA = {"x": np.zeros((64, 1), np.float32), "y": np.arange(64).reshape(-1, 1) % 2 * 1.0}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(1, 1, bias=False)
        self.correction = SamplingCorrection(RATE)

    def forward(self, features):
        return {"click": self.correction(self.dense(features["x"]))}


def feed(dataset, mode, metadata):
    x = {"x": dataset.columns["x"]}
    return x if mode == Mode.PREDICTION else (x, dataset.columns["y"])


def loss(labels, outputs):
    return nn.functional.binary_cross_entropy_with_logits(outputs["click"], labels.float())


def test_a_model_is_trained_on_the_sampled_log_and_is_right_of_all_data_elsewhere(
    new_torch_job, tmp_path
):
    job = new_torch_job(
        DATA, 64, model=Model, loss=loss, feed=feed,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )  # fmt: skip
    assert job.train(DATA, 64) == [pytest.approx(np.log(2.0))]  # half of the log is clicks: logit 0
    (predicted,) = job.predictions({"x": DATA["x"][:4]}, 4)
    np.testing.assert_allclose(predicted["click"], np.log(RATE), atol=1e-6)
    job.export(tmp_path)
    program = torch.export.load(tmp_path / "model.pt2").module()
    served = program({"x": torch.zeros(4, 1)})["click"]
    np.testing.assert_array_equal(served.detach(), predicted["click"])


def test_a_rate_that_is_no_share_is_refused():
    with pytest.raises(ModelError, match="the share of the negatives that was kept"):
        SamplingCorrection(0.0)
