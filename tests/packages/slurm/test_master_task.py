"""The task of a master that was asked to end has a successor, or says why there is none."""

import json

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.errors import LaunchError
from elasticdl.launchers.process.folder import END_FILE
from elasticdl.packages.slurm import __main__ as room
from elasticdl.packages.slurm import commands
from elasticdl.packages.slurm.commands import SlurmAwayError, SlurmTask
from elasticdl.packages.slurm.roster import Occupied, Roster

CONFIG = build_config(
    "train", {"model_def": "a.forward", "training_data": "/data", "launcher": "slurm"}
)
RUNS, CANCELLED = SlurmTask("R"), SlurmTask("CA")
AWAY = SlurmAwayError("sbatch: Socket timed out")


@pytest.fixture
def job_dir(tmp_path, monkeypatch):
    """The folder of a job whose processes were stopped."""
    monkeypatch.setattr(room, "own_task", lambda: Occupied("1", 0))
    monkeypatch.setattr(commands, "own_tasks", lambda: {"1": RUNS})
    monkeypatch.setattr(commands, "jobs_named", lambda name: {"1"})
    monkeypatch.setattr(commands, "submit", lambda script, words: "2")
    monkeypatch.setattr(commands, "_AGAIN_SECONDS", 0.0)
    Roster(tmp_path).prepare()
    (tmp_path / END_FILE).write_text(json.dumps({"status": "stopped", "message": "by SIGTERM"}))
    return tmp_path


def answering(*answers):
    """Return a function that gives these answers, of which errors are raised."""
    left = list(answers)

    def answer(*_):
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return found

    return answer


def end_of(job_dir):
    return json.loads((job_dir / END_FILE).read_text())


def test_slurm_is_asked_again_why_a_task_is_to_end(job_dir, monkeypatch):
    away = SlurmAwayError("squeue: Unable to contact slurm controller")
    monkeypatch.setattr(commands, "own_tasks", answering(away, away, {"1": RUNS}))
    room._come_back(job_dir, CONFIG)
    assert Roster(job_dir).master() == "2"
    assert not (job_dir / END_FILE).exists()


def test_a_successor_is_asked_for_again_if_slurm_was_away(job_dir, monkeypatch):
    monkeypatch.setattr(commands, "submit", answering(AWAY, AWAY, "2"))
    room._come_back(job_dir, CONFIG)
    assert Roster(job_dir).master() == "2"
    assert not (job_dir / END_FILE).exists()


def test_a_successor_that_slurm_has_queued_without_an_answer_is_the_only_one(job_dir, monkeypatch):
    monkeypatch.setattr(commands, "submit", answering(AWAY, "3"))
    monkeypatch.setattr(commands, "jobs_named", answering({"1"}, {"1", "2"}))
    room._come_back(job_dir, CONFIG)
    assert Roster(job_dir).master() == "2"


def test_a_job_that_was_cancelled_stays_stopped(job_dir, monkeypatch):
    monkeypatch.setattr(commands, "own_tasks", lambda: {"1": CANCELLED})
    room._come_back(job_dir, CONFIG)
    assert end_of(job_dir)["message"] == "by SIGTERM"


def test_a_job_without_a_successor_says_why(job_dir, monkeypatch):
    monkeypatch.setattr(commands, "submit", answering(LaunchError("sbatch: no such account")))
    room._come_back(job_dir, CONFIG)
    end = end_of(job_dir)
    assert end["status"] == "stopped"
    assert "no task of Slurm takes over: sbatch: no such account" in end["message"]


@pytest.mark.parametrize("name", ["own_tasks", "submit"])
def test_a_job_is_stopped_if_slurm_stays_away(job_dir, monkeypatch, name):
    monkeypatch.setattr(room, "_AWAY_SECONDS", 0.05)
    monkeypatch.setattr(commands, name, answering(SlurmAwayError("Unable to contact")))
    room._come_back(job_dir, CONFIG)
    assert "no task of Slurm takes over: Unable to contact" in end_of(job_dir)["message"]
