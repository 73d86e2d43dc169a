"""The report on the zoo's quality: what is run again, what the runs show, and a small one."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.readme import FOLDER
from benchmarks.zoo_verdicts import ONE_WORKER, TOLERANCE, verdicts


@pytest.fixture
def zoo(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("zoo")


def run(side, value, seed=0, **settings):
    return {
        "model": "m",
        "side": side,
        "strategy": "ParameterServerStrategy" if side == "job" else "",
        "framework": "scikit-learn" if side == "linear" else "keras",
        "seed": seed,
        "settings": {
            "data": "d",
            "num_epochs": 1,
            "minibatch_size": 8,
            "model_def": "m.f",
            **settings,
        },
        "metric": "auc",
        "value": value,
    }


def plain(*values, **settings):
    return [run("plain", value, seed, **settings) for seed, value in enumerate(values)]


@pytest.mark.parametrize(
    ("job", "is_as_good"),
    [(0.800, True), (0.8 - TOLERANCE + 1e-9, True), (0.8 - TOLERANCE - 1e-6, False)],
)
def test_a_job_may_be_below_plain_training_by_the_tolerance(job, is_as_good):
    (verdict,) = verdicts([*plain(0.8, 0.8, 0.8), run("job", job), run("linear", 0.7)])
    assert (verdict.is_as_good, verdict.beats_linear) == (is_as_good, True)
    assert ("as good as" if is_as_good else "BELOW") in verdict.text


@pytest.mark.parametrize(("one", "word"), [(0.8, "as good as"), (0.81, "BELOW")])
def test_several_workers_stand_beside_one(one, word):
    three = run("job", 0.8) | {"strategy": "AllreduceStrategy"}
    alone = run("job", one) | {"strategy": ONE_WORKER}
    of_three, of_one = verdicts([*plain(0.8, 0.8, 0.8), three, alone])
    assert (of_three.one_worker, of_one.one_worker) == (one, None)
    assert f", {word} one worker {one:.4f}" in of_three.text
    assert "one worker 0" not in of_one.text


def test_two_standard_deviations_of_the_seeds_are_allowed_where_they_are_more():
    seeds = plain(0.79, 0.80, 0.81)
    (verdict,) = verdicts([*seeds, run("job", 0.7801)])
    assert verdict.allowed == pytest.approx(0.02)
    assert verdict.is_as_good
    (verdict,) = verdicts([*seeds, run("job", 0.7799), run("linear", 0.79)])
    assert not verdict.is_as_good
    assert "BELOW" in verdict.text
    assert "NOT better than linear" in verdict.text


def test_plain_training_with_other_settings_does_not_count():
    (verdict,) = verdicts([*plain(0.9, num_epochs=2), run("job", 0.8)])
    assert (verdict.plain, verdict.is_as_good) == (None, None)


def test_a_run_that_is_there_with_the_same_settings_is_not_made_again(zoo, tmp_path):
    results = zoo.Results(tmp_path / "zoo.json")
    model = zoo.MODELS[0]
    wanted = list(zoo.runs([model], 2, 1, ("linear", "job", "plain")))
    assert len(wanted) == 4
    results.add(wanted[1].row(0.9, 3.0))

    again = zoo.Results(tmp_path / "zoo.json")

    assert [run.side for run in wanted if not again.has(run)] == ["linear", "plain", "plain"]
    other = replace(model, num_epochs=model.num_epochs + 1)
    assert not again.has(zoo.Run(other, "job", wanted[1].strategy))
    again.add(wanted[1].row(0.8, 3.0))  # made again: it stands instead of the other
    assert [row.value for row in zoo.Results(tmp_path / "zoo.json").rows] == [0.8]


def test_a_linear_model_stands_for_all_models_of_its_data(zoo, tmp_path):
    results = zoo.Results(tmp_path / "zoo.json")
    one, other = (model for model in zoo.MODELS if model.name in ("dac_dcn", "dac_deepfm"))
    results.add(zoo.Run(one, "linear").row(0.7, 3.0))
    found = results.linear_of(zoo.Run(other, "linear"))
    assert (found.model, found.value) == (other.name, 0.7)
    assert results.linear_of(zoo.Run(other, "plain")) is None
    assert results.linear_of(zoo.Run(zoo.MODELS[0], "linear")) is None


@pytest.mark.long
@pytest.mark.keras
@pytest.mark.timeout(300)
def test_a_short_report_runs_all_sides():
    done = subprocess.run(
        [sys.executable, FOLDER / "zoo.py", "--short", "--only=iris"],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    assert "4 runs, of which 4 are to be made" in done.stdout
    for strategy in ("ParameterServerStrategy", "AllreduceStrategy"):
        assert f"iris (keras), {strategy}: accuracy" in done.stdout


def test_results_in_the_tree_are_those_of_the_models_of_today(zoo):
    document = json.loads((FOLDER / "results" / "zoo.json").read_text())
    names = {model.name for model in zoo.MODELS}
    assert {row["model"] for row in document["runs"]} <= names
    assert document["runs"]
