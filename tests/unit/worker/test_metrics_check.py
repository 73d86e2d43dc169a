"""Metrics are tried before the first record, and `--keep_best` names one of them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from elasticdl.backends.base import Minibatch
from elasticdl.config import CheckpointSection, DataSection, JobConfig, ModelSection
from elasticdl.errors import ConfigError, ModelError
from elasticdl.job import TaskKind
from elasticdl.worker import data_check as metrics_check

MINIBATCH = Minibatch(None, np.zeros(2), 2)


class Model:
    """An export whose evaluation fails, if it has an error."""

    ids_need_parameters = False

    def __init__(self, error=None):
        self.error, self.num_begun = error, 0

    def new_metrics(self):
        self.num_begun += 1

    def evaluate_step(self, minibatch, rows, dense, state):
        assert minibatch is MINIBATCH
        if self.error is not None:
            raise self.error

    def metric_states(self):
        return {}

    def metric_results(self, states):
        return {"click/auc": 0.5, "loss": 1.0}


@pytest.fixture
def check(monkeypatch):
    monkeypatch.setattr(metrics_check, "sample_minibatch", lambda *_: MINIBATCH)

    def check(model, keep_best=""):
        config = JobConfig(
            command="train",
            model=ModelSection(model_def="zoo.model.forward"),
            data=DataSection(training_data="train/", validation_data="valid/"),
            checkpoint=CheckpointSection(keep_best=keep_best, checkpoint_dir=Path("c")),
        )
        reader = SimpleNamespace()
        metrics_check.check_metrics(config, model, None, {TaskKind.EVALUATION: reader})

    return check


def test_a_metric_of_keep_best_that_is_not_there_is_refused(check):
    model = Model()
    check(model)
    assert model.num_begun == 2  # nothing of it stays
    for known in ("click_auc", "val_click/auc", "loss"):
        check(Model(), f"{known}:max")
    with pytest.raises(ConfigError, match=r"--keep_best=acuracy: .* but click/auc, loss"):
        check(Model(), "acuracy:max")


def test_a_metric_that_fails_is_refused_and_a_model_that_does_is_left_to_its_tasks(check):
    with pytest.raises(ModelError, match="metric 'x' raised"):
        check(Model(ModelError("metric 'x' raised ValueError: no")), "acuracy:max")
    check(Model(ModelError("the model fails on a minibatch of 2 records")), "acuracy:max")
