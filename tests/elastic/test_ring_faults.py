"""Ranks of a ring as processes, one of which is killed or stopped in the middle of a reduction."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("ring_rank.py")
SIZE = 4_000_003
SILENCE_SECONDS = 8.0  # a rank that is alive may be held for some
DEADLINE_SECONDS = 60.0  # a ring's own time-out is twice as long: see ring_rank.py
FOREVER = 1_000_000
TRANSPORTS = {
    "shared memory": {"unix_sockets": True, "shared_memory": True},
    "unix": {"unix_sockets": True, "shared_memory": False},
    "tcp": {"unix_sockets": False, "shared_memory": False},
}


class Rank:
    """A process; `member` stays the same when its rank changes."""

    def __init__(self, member, transport):
        settings = {"member": member, "size": SIZE, "silence_seconds": SILENCE_SECONDS}
        words = json.dumps(settings | TRANSPORTS[transport])
        self.member = member
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = ""

    def next(self, key):
        """Return the next event that has a key."""
        for line in self.process.stdout:
            event = json.loads(line)
            if key in event:
                return event
        raise AssertionError(f"member {self.member} ended before it said {key!r}")

    def join(self, world_id, ranks, step, steps):
        """Have it reduce the gradients of some steps; it keeps what it has of the first."""
        members = [rank.address for rank in ranks]
        world = {"id": world_id, "rank": ranks.index(self), "members": members}
        world |= {"step": step, "steps": steps}
        self.process.stdin.write(json.dumps(world) + "\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start():
    ranks = []

    def start_ranks(count, transport):
        ranks.extend(Rank(member, transport) for member in range(count))
        for rank in ranks:
            rank.address = rank.next("address")["address"]
        return ranks.copy()

    yield start_ranks
    for rank in ranks:
        rank.end()


def gradients_of(member, step):
    return np.random.default_rng([member, step]).standard_normal(SIZE, np.float32)


def form(world_id, ranks, step, steps):
    for rank in ranks:
        rank.join(world_id, ranks, step, steps)
    return {rank.next("formed")["transport"] for rank in ranks}


def faults():
    """Each fault on each transport; Unix sockets go silent as those of TCP do."""
    for transport in TRANSPORTS:
        for fault in (signal.SIGKILL, signal.SIGSTOP):
            is_long = (transport, fault) == ("unix", signal.SIGSTOP)
            marks = [pytest.mark.long] if is_long else []
            yield pytest.param(transport, fault, id=f"{transport}-{fault.name}", marks=marks)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("transport", "fault"), list(faults()))
def test_survivors_name_the_lost_rank_and_redo_the_reduction_without_it(transport, fault, start):
    ranks = start(4, transport)
    assert form(1, ranks, 0, FOREVER) == {transport}
    victim = ranks[2]
    while victim.next("begins")["begins"] < 2:
        pass
    victim.process.send_signal(fault)

    survivors = [rank for rank in ranks if rank is not victim]
    errors = [rank.next("error") for rank in survivors]
    for error in errors:
        assert error["rank"] == 2, error
        assert error["error"].startswith("ring 1: rank 2 was ")
        assert error["seconds"] < DEADLINE_SECONDS
        assert error["same"], "an abort changes the gradients"
    # Some may have finished a reduction that others have not: they differ by one at most.
    steps = {error["step"] for error in errors}
    assert max(steps) - min(steps) <= 1

    step = min(steps)
    assert form(2, survivors, step, 1) == {transport}
    results = [rank.next("sum") for rank in survivors]
    assert len({result["sum"] for result in results}) == 1
    weights = {rank.member: rank.member + 1 for rank in survivors}
    mean = sum(
        weight * gradients_of(member, step)[:5].astype(np.float64)
        for member, weight in weights.items()
    ) / sum(weights.values())
    np.testing.assert_allclose(results[0]["head"], mean, rtol=1e-5, atol=1e-6)

    if fault == signal.SIGSTOP:
        # Whoever was given up learns it when it goes on.
        victim.process.send_signal(signal.SIGCONT)
        assert victim.next("error")["same"]
