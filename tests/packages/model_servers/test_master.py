"""Model servers as the master has them: planned, found, and replaced at their places."""

import pytest

from elasticdl.errors import ElasticdlError
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master.actions import StartProcess
from elasticdl.master.status import picture
from elasticdl.packages.model_servers.master import ModelServerAddresses


@pytest.fixture
def play(master_kit):
    played = master_kit.play(master_kit.config(num_ps=1, num_model_servers=2, max_relaunches=0))
    played.core.begin(0.0)
    for action in played.do(StartProcess):
        handle = ProcessHandle(action.role, action.index, f"{action.role} {action.index}")
        played.core.processes.started(handle, played.now)
    played.register_ps(0)
    played.register(0)
    return played


def register(play, index, session="s"):
    servers = play.core.features.of(ModelServerAddresses)
    servers.register(index, session, 300 + index, f"host:{20 + index}", play.now)


def exits(play, index, reason=ExitReason.KILLED, code=-9, words=""):
    handle = ProcessHandle(Role.MODEL_SERVER, index, f"modelserver {index}")
    play.core.process_exited(Exited(handle, reason, code, words), play.now)


def test_workers_are_told_where_model_servers_are(play):
    assert play.core.features.of(ModelServerAddresses).addresses() == ["", ""]
    register(play, 1)
    assert play.core.features.of(ModelServerAddresses).addresses() == ["", "host:21"]
    with pytest.raises(ElasticdlError, match="--num_model_servers=2"):
        register(play, 2)


def test_one_that_is_killed_is_started_again_at_its_place_and_costs_nothing(play):
    register(play, 0)
    exits(play, 0)
    assert play.do(StartProcess)[-1] == StartProcess(Role.MODEL_SERVER, 0)
    assert play.core.features.of(ModelServerAddresses).addresses() == ["", ""]
    register(play, 0, "another")
    assert play.core.features.of(ModelServerAddresses).addresses() == ["host:20", ""]
    assert not play.core.has_ended


def test_one_that_fails_by_itself_counts_and_ends_the_job(play):
    exits(play, 0, ExitReason.FAILED, 1, "ModelError: no tower")
    assert play.core.has_ended
    assert (
        "model server 0 failed with exit code 1: ModelError: no tower"
        in picture(play.core, 0.0).message
    )


def test_a_master_that_takes_the_job_up_knows_them(play, master_kit):
    register(play, 0)
    members = play.core.members.snapshot()
    play.core.members.restore(members)
    assert play.core.features.of(ModelServerAddresses).addresses() == ["host:20", ""]
