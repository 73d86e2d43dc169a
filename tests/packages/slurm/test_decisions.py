"""What is concluded from what Slurm says of tasks."""

import os

import pytest

from elasticdl.job import Role
from elasticdl.launchers.base import ExitReason
from elasticdl.packages.slurm import commands
from elasticdl.packages.slurm.commands import SlurmTask, parse
from elasticdl.packages.slurm.launcher import missing_places, silent_end, superfluous
from elasticdl.packages.slurm.own_task import Request, meaning, own_task
from elasticdl.packages.slurm.roster import Occupied

OWN = Occupied("12_3", num_restarts=1)


@pytest.mark.parametrize(
    ("line", "task"),
    [
        ("12  3  PD 1 Resources ", ("12_3", SlurmTask("PD", 1, "Resources"))),
        ("7  N/A  R 0 None ", ("7", SlurmTask("R", 0, "None"))),
        (
            "7 N/A PD 0 Nodes required are DOWN",
            ("7", SlurmTask("PD", 0, "Nodes required are DOWN")),
        ),
    ],
)
def test_a_line_of_squeue_is_read(line, task):
    assert parse(line) == task


def test_what_users_set_for_their_own_commands_changes_none_of_ours(tmp_path, monkeypatch):
    (tmp_path / "sbatch").write_text("#!/bin/sh\nenv\ncat\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ours = ("SLURM_CONF", "SBATCH_ACCOUNT", "SBATCH_PARTITION")
    theirs = ("SQUEUE_PARTITION", "SCANCEL_INTERACTIVE", "SBATCH_WAIT", "SLURM_JOB_ID")
    for name in (*ours, *theirs):
        monkeypatch.setenv(name, "1")
    said = commands._run("sbatch", given="the script").splitlines()
    assert said[-1] == "the script"
    assert {line.partition("=")[0] for line in said}.intersection((*ours, *theirs)) == set(ours)


@pytest.mark.parametrize(
    ("found", "request_"),
    [
        (SlurmTask("CG", 2), Request.RETURNS),  # `scontrol requeue`: it ends, and is counted anew
        (SlurmTask("PD", 1), Request.RETURNS),
        (SlurmTask("CG", 1), Request.CANCELLED),
        (SlurmTask("CA", 1), Request.CANCELLED),
        (None, Request.CANCELLED),
        (SlurmTask("R", 1), Request.NOTICE),  # `--signal`, a minute before the time limit
    ],
)
def test_why_a_task_is_asked_to_end(found, request_):
    assert meaning(OWN, found) is request_


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (SlurmTask("R", 1), None),
        (SlurmTask("CG", 1), None),  # it ends, and may say so yet
        (SlurmTask("PD", 2), ExitReason.NODE_LOST),  # queued again, without a word
        (SlurmTask("R", 2), ExitReason.NODE_LOST),
        (SlurmTask("NF", 1), ExitReason.NODE_LOST),
        (SlurmTask("OOM", 1), ExitReason.OUT_OF_MEMORY),
        (SlurmTask("TO", 1), ExitReason.PREEMPTED),
        (SlurmTask("PR", 1), ExitReason.PREEMPTED),
        (SlurmTask("CA", 1), ExitReason.PREEMPTED),
        (SlurmTask("F", 1), ExitReason.KILLED),
        (None, ExitReason.UNKNOWN),
    ],
)
def test_how_a_process_ended_that_said_nothing(found, reason):
    assert silent_end(OWN, found) is reason


def test_places_in_the_queue_that_nobody_waits_for_are_given_back_youngest_first():
    arrays = {"5": Role.WORKER, "9": Role.WORKER, "6": Role.PS}
    tasks = {
        "10": SlurmTask("PD"),  # another job of the user
        "9_0": SlurmTask("PD"),
        "5_2": SlurmTask("PD", 1),
        "5_10": SlurmTask("PD"),
        "5_1": SlurmTask("R"),
        "6_0": SlurmTask("PD"),
    }
    assert superfluous(arrays, tasks, {Role.WORKER: 2, Role.PS: 1}) == ["9_0"]
    assert superfluous(arrays, tasks, {Role.PS: 1}) == ["5_2", "5_10", "9_0"]


def test_processes_whose_places_are_gone_lack_one_each():
    arrays = {"5": Role.WORKER, "6": Role.PS}
    tasks = {
        "5_0": SlurmTask("R"),
        "5_1": SlurmTask("R"),  # about to take one of those that are wanted
        "5_2": SlurmTask("PD"),
        "5_3": SlurmTask("CA"),
        "6_0": SlurmTask("PD", 1),
    }
    wanted = {Role.WORKER: 4, Role.PS: 1}
    assert missing_places(arrays, tasks, wanted, taken={"5_0"}) == {Role.WORKER: 2}


def test_a_task_knows_itself_by_what_slurm_tells_it():
    array = {"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}
    assert own_task(array | {"SLURM_RESTART_COUNT": "1"}) == OWN
    assert own_task({"SLURM_JOB_ID": "14"}) == Occupied("14", 0)
