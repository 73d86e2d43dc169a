"""A script that `elasticdl run` has not started, and flags that a script's job does not have."""

import sys

import pytest

from elasticdl import controller
from elasticdl.cli.main import run_command
from elasticdl.errors import ConfigError, ModelError
from elasticdl.job import Strategy
from elasticdl.packages.own_loops.command import configure
from elasticdl.packages.own_loops.worker import run_script


def test_a_plain_process_has_no_controller():
    with pytest.raises(ConfigError, match=r"elasticdl run script\.py"):
        controller.init()


def test_gradients_of_zero_are_refused():
    with pytest.raises(
        ModelError, match=r"zero_grad\(set_to_none=False\): expected set_to_none=True"
    ):
        controller.Optimizer(None).zero_grad(set_to_none=False)


class FinishedJob:
    """A job that has finished before this worker had any parameters."""

    is_shards_only, seed, failure = True, 0, None

    def begin(self, trainer, handover):
        handover.end()

    def finish(self):
        raise SystemExit(0)


def test_a_worker_that_comes_when_all_is_trained_ends_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(controller.Controller, "_prepare", lambda self: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    script = tmp_path / "loop.py"
    loop = "list(controller.init().minibatches())"
    script.write_text(f"from elasticdl import controller\n{loop}\n1 / 0\n")
    run_script(script, (), FinishedJob())


def test_the_job_of_a_script_is_one_of_all_reduce(tmp_path):
    config = configure(
        tmp_path / "loop.py", ("--units=3",), {"training_data": "data", "num_workers": "3"}
    )
    assert config.model.script == tmp_path / "loop.py"
    assert config.model.script_arguments == ("--units=3",)
    assert config.training.distribution_strategy is Strategy.ALLREDUCE
    assert config.cluster.num_workers == 3


def test_the_job_of_a_script_that_wants_minibatches_alone_has_no_world(tmp_path):
    words = {"training_data": "data", "num_workers": "3"}
    config = configure(tmp_path / "loop.py", (), words, shards_only=True)
    assert config.training.distribution_strategy is Strategy.PARAMETER_SERVER
    assert config.training.use_async
    assert config.num_ps == 1
    assert not config.has_worlds


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["loop.py", "--shards_only", "--training_data=data", "--output=o"], "--output needs a"),
        (["loop.py"], "needs --training_data"),
        (["loop.py", "--training_data=data", "--model_def=a.b"], "unknown flag --model_def"),
        (["loop.py", "--training_data=data", "--num_workers=no"], "--num_workers: expected"),
        (["none.py", "--training_data=data"], "expected a Python file, found none"),
        (["wrong.py", "--training_data=data"], "wrong.py:1:"),
        (["loop.py", "--training_data=none"], "--training_data"),
    ],
)
def test_what_cannot_run_is_said_before_anything_starts(
    tmp_path, monkeypatch, capsys, words, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").write_text("pass\n")
    (tmp_path / "wrong.py").write_text("for\n")
    (tmp_path / "data").write_text("1\n")
    assert run_command(["run", *words]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "jobs").exists()
