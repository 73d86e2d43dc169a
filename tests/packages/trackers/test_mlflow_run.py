"""A run of MLflow with a server that is played; test_mlflow_job.py has a real one."""

import dataclasses
import posixpath
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.job.status import no_status
from elasticdl.packages.trackers import mlflow_run
from elasticdl.packages.trackers.mlflow_run import MlflowRun


class PlayedServer:
    """Takes a batch if all of its names are such as MLflow takes."""

    def __init__(self):
        self.metrics, self.end = {}, ""
        self.get_experiment_by_name = lambda name: SimpleNamespace(experiment_id="1")
        self.search_runs = lambda experiments, words: []
        info = SimpleNamespace(info=SimpleNamespace(run_id="a"))
        self.create_run = lambda experiment, run_name, tags: info
        self.get_run = lambda run: SimpleNamespace(data=SimpleNamespace(params={}))

    def log_batch(self, run, metrics=(), params=()):
        for name, _, _, _ in metrics:
            is_path = posixpath.normpath(name) == name and not name.startswith(("/", ".."))
            if not is_path or not re.fullmatch(r"[/\w.\- :]*", name):
                raise ValueError(f"Invalid value {name!r} for parameter 'metrics.name'")
        self.metrics |= {metric[0]: metric[1] for metric in metrics}

    def set_terminated(self, run, end):
        self.end = end


@pytest.fixture
def server(monkeypatch):
    server = PlayedServer()
    monkeypatch.setattr(mlflow_run, "is_missing", lambda name: False)
    for name, words in {
        "mlflow": {},
        "mlflow.entities": {"Metric": lambda *words: words, "Param": lambda *words: words},
        "mlflow.tracking": {"MlflowClient": lambda tracking_uri: server},
    }.items():
        module = ModuleType(name)
        module.__dict__.update(words)
        monkeypatch.setitem(sys.modules, name, module)
    return server


def test_metrics_of_any_name_are_taken(server):
    words = {"model_def": "zoo.forward", "training_data": "data", "mlflow_uri": "http://a:1"}
    words["distribution_strategy"] = "ParameterServerStrategy"
    run = MlflowRun(build_config("train", words), "job")
    named = {"recall@10": 0.5, "auc(pr)": 0.25, "top%": 0.75, "/a//b": 1.0, "f1 score": 2.0}
    status = dataclasses.replace(no_status("job", 1), status="finished", model_version=10)
    run.take(dataclasses.replace(status, loss=3.0, metrics=named), None, is_last=True)
    run.close(1.0)
    assert server.metrics == {
        "loss/training": 3.0,
        "throughput/records_per_second": 0.0,
        "recall_10/evaluation": 0.5,
        "auc_pr_/evaluation": 0.25,
        "top_/evaluation": 0.75,
        "a/b/evaluation": 1.0,
        "f1 score/evaluation": 2.0,
    }
    assert server.end == "FINISHED"
