"""A ps replica that restores for long shows it, and one that hangs does not."""

import threading

from elasticdl.errors import UnavailableError
from elasticdl.job import Role
from elasticdl.master.journal import Journal
from elasticdl.master.membership import START_TIMEOUT_SECONDS, Membership
from elasticdl.ps.__main__ import shown

SOON = 0.01
LATER = 60.0


class Counted:
    """A `Progress` that says what the test wants."""

    def __init__(self):
        self.pieces = 0


def test_heartbeats_are_sent_as_long_as_pieces_are_read():
    progress, heard = Counted(), threading.Semaphore(0)

    with shown(progress, heard.release, SOON):
        for _ in range(3):
            progress.pieces += 1
            assert heard.acquire(timeout=LATER)


def test_a_restore_that_stands_still_sends_no_heartbeats():
    heard = threading.Event()

    with shown(Counted(), heard.set, SOON):
        assert not heard.wait(20 * SOON)


def test_a_master_that_cannot_be_reached_does_not_end_the_heartbeats():
    progress, calls = Counted(), threading.Semaphore(0)

    def heartbeat():
        calls.release()
        raise UnavailableError("the master is away")

    with shown(progress, heartbeat, SOON):
        for _ in range(2):
            progress.pieces += 1
            assert calls.acquire(timeout=LATER)


def test_a_ps_replica_that_shows_progress_has_as_long_to_start_as_it_needs():
    members = Membership(Journal(), heartbeat_timeout_seconds=10.0)
    for index in (0, 1):
        members.runs(members.plan(Role.PS, 0.0, index), 0.0)

    members.heard(Role.PS, 0, "a session that is not registered yet", START_TIMEOUT_SECONDS - 1.0)

    assert [m.index for m in members.silent(START_TIMEOUT_SECONDS + 1.0)] == [1]
    assert len(members.silent(2 * START_TIMEOUT_SECONDS)) == 2
