"""`elasticdl simulate --calibrate` runs a user's model on this machine, and keeps what it costs."""

import json
from pathlib import Path

import pytest

from elasticdl.cli.main import run_command
from elasticdl.packages.simulate.costs import read_costs
from scripts.chaos.job import make_ids, write_data

MODEL_ZOO = Path(__file__).resolve().parents[3] / "model_zoo"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_costs_of_a_model_are_measured_and_a_cluster_is_simulated_with_them(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "data", make_ids(seed=0))
    words = ["simulate", "--workers=8", "--ps=2", "--model=counting.model.forward", "--json"]
    of_job = [f"--model_zoo={MODEL_ZOO}", "--training_data=data", "--minibatch_size=16"]
    assert run_command([*words, "--calibrate", "--", *of_job]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["records_per_second"] > 0
    costs = read_costs(tmp_path / "costs" / "counting.model.forward.json")
    assert costs.minibatch_size == 16
    assert costs.minibatches_per_task == 20
    assert min(costs.feed, costs.prepare, costs.compute, costs.commit, costs.ps, costs.start) > 0
    lines = [path.stat().st_size for path in (tmp_path / "data").iterdir()]
    assert costs.record_bytes == pytest.approx(sum(lines) / 48_000)
    assert run_command(words) == 0  # without measuring again
    assert json.loads(capfd.readouterr().out) == found


def test_a_model_that_does_not_train_says_what_its_job_said(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "data", make_ids(seed=0))
    words = ["--workers=1", "--ps=1", "--model=counting.model.nothing", "--calibrate", "--"]
    of_job = [f"--model_zoo={MODEL_ZOO}", "--training_data=data", "--minibatch_size=16"]
    assert run_command(["simulate", *words, *of_job]) == 1
    assert "nothing" in capfd.readouterr().err
