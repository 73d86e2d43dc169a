"""The files by which places on several nodes find out what is wanted."""

import pytest

from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason
from elasticdl.packages.slurm.roster import Occupied, Roster, handle_of

FIRST, SECOND = Occupied("5_0", 0), Occupied("5_1", 2)


@pytest.fixture
def roster(tmp_path):
    found = Roster(tmp_path)
    found.prepare()
    return found


def test_each_place_takes_another_process_of_its_role(roster):
    for ref in ("worker-10-a", "worker-9-b", "ps-0-c"):
        roster.want(ref, ["run", ref])
    assert roster.take(Role.WORKER, FIRST) == (handle_of("worker-9-b"), ["run", "worker-9-b"])
    assert roster.take(Role.WORKER, SECOND) == (handle_of("worker-10-a"), ["run", "worker-10-a"])
    assert roster.take(Role.WORKER, Occupied("5_2", 0)) is None
    assert roster.wanted() == {"ps-0-c"}
    assert roster.running() == {"worker-9-b": FIRST, "worker-10-a": SECOND}


def test_what_was_taken_cannot_be_unwanted(roster):
    for ref in ("worker-0-a", "worker-1-b"):
        roster.want(ref, [])
    roster.take(Role.WORKER, FIRST)
    assert not roster.unwant("worker-0-a")
    assert roster.unwant("worker-1-b")


def test_an_end_is_told_and_forgotten(roster):
    roster.want("worker-0-a", [])
    handle, _ = roster.take(Role.WORKER, FIRST)
    end = Exited(handle, ExitReason.FAILED, 3, "no loss in x.py")
    roster.tell_end(end)
    assert roster.ended() == {"worker-0-a"}
    assert roster.end_of(handle) == end
    roster.forget("worker-0-a", FIRST)
    assert (roster.ended(), roster.running()) == (set(), {})
    assert roster.end_of(handle).reason is ExitReason.UNKNOWN


def test_the_jobs_of_slurm_are_known_to_the_next_master(roster, tmp_path):
    roster.write_arrays({"5": Role.WORKER, "7": Role.PS})
    roster.write_master("4")
    after = Roster(tmp_path)
    assert after.arrays() == {"5": Role.WORKER, "7": Role.PS}
    assert after.master() == "4"
