"""`elasticdl simulate` as a user meets it: figures, files, and words for what is wrong."""

import json

import pytest

from elasticdl.cli.main import run_command
from elasticdl.packages.simulate.published import FLIGHTS


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_cluster_is_described_and_a_figure_is_written(capsys, here):
    words = ["--workers=4", "--ps=2", "--figure=a.svg", "--stragglers=0.5:2", "--spot_rate=3"]
    assert run_command(["simulate", *words]) == 0
    out = capsys.readouterr().out
    for name in ("speed", "efficiency", "goodput", "bottleneck"):
        assert name in out
    assert (here / "a.svg").read_text().startswith("<svg")


def test_costs_of_a_model_are_those_of_its_file(capsys, here):
    FLIGHTS.of_minibatches(64).write(here / "costs" / "my.model.forward.json")
    words = ["simulate", "--workers=2", "--ps=1", "--model=my.model.forward", "--json"]
    assert run_command(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["workers"] == 2
    assert 0 < found["efficiency"] <= 1.02
    assert set(found["gains_if_twice_as_fast"]) >= {"compute", "network of ps", "master"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "expected --workers and --ps"),
        (["--workers=1", "--ps=1", "--model=other.forward"], "measure them once"),
        (["--workers=1", "--ps=1", "--calibrate"], "expected --model"),
        (["--workers=1", "--ps=1", "--stragglers=many"], "expected SHARE:FACTOR"),
        (["--workers=1", "--ps=1", "--stragglers=0.1:0.5"], "--stragglers: expected a share"),
        (["--workers=1", "--ps=1", "--", "--minibatch_size=1"], "expected --calibrate"),
        (["--preset=xdl", "--workers=8", "--json", "--hours=1"], "--workers, --json would have no"),
    ],
)
def test_what_cannot_be_simulated_is_said(capsys, words, problem):
    assert run_command(["simulate", *words]) == 1
    assert problem in capsys.readouterr().err
