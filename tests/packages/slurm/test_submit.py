"""Jobs on Slurm as a command sees them, with a Slurm that is played."""

import json

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.job.status import no_status
from elasticdl.launchers.process.folder import END_FILE
from elasticdl.packages.slurm import commands
from elasticdl.packages.slurm.commands import SlurmAwayError
from elasticdl.packages.slurm.submit import SlurmSubmitter
from elasticdl.rpc import messages
from elasticdl.runtime import process


@pytest.fixture
def job_dir(tmp_path, monkeypatch):
    """The folder of a job, where Slurm cannot be asked."""

    def away():
        raise SlurmAwayError("squeue: Unable to contact slurm controller")

    monkeypatch.setattr(commands, "own_tasks", away)
    words = {"model_def": "a.forward", "training_data": "/data", "launcher": "slurm"}
    text = build_config("train", words).model_dump_json()
    (tmp_path / process.CONFIG_FILE).write_text(text)
    return tmp_path


def test_a_job_that_has_ended_is_shown_though_slurm_is_away(job_dir):
    picture = messages.status_to_json(no_status("a", 3))
    (job_dir / process.PICTURE_FILE).write_text(picture)
    assert SlurmSubmitter().find(str(job_dir)).end(0.0).num_epochs == 3


def test_a_job_that_could_not_begin_says_why_though_slurm_is_away(job_dir):
    (job_dir / END_FILE).write_text(json.dumps({"status": "failed", "message": "no such file"}))
    end = SlurmSubmitter().find(str(job_dir)).end(0.0)
    assert (end.status, end.message) == ("failed", "no such file")


def test_a_job_that_a_signal_has_stopped_may_go_on_while_slurm_is_away(job_dir):
    (job_dir / END_FILE).write_text(json.dumps({"status": "stopped", "message": "by SIGTERM"}))
    assert SlurmSubmitter().find(str(job_dir)).end(0.0) is None


def test_a_job_without_an_end_may_go_on_while_slurm_is_away(job_dir):
    assert SlurmSubmitter().find(str(job_dir)).end(0.0) is None


def test_a_command_that_is_interrupted_leaves_no_task_in_the_queue(tmp_path, monkeypatch):
    def submit(script, words):
        raise KeyboardInterrupt

    jobs, cancelled = iter([{"1"}, {"1", "2"}]), []
    monkeypatch.setattr(commands, "own_tasks", dict)
    monkeypatch.setattr(commands, "jobs_named", lambda name: next(jobs))
    monkeypatch.setattr(commands, "submit", submit)
    monkeypatch.setattr(commands, "cancel", cancelled.append)
    words = {"model_def": "a.forward", "training_data": "/data", "launcher": "slurm"}
    config = build_config("train", words | {"job_dir": str(tmp_path / "job")})
    with pytest.raises(KeyboardInterrupt):
        SlurmSubmitter().submit(config, is_tied=False)
    assert cancelled == [{"2"}]
