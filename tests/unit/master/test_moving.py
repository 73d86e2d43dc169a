"""Who leads a move waits for no process that is lost, though it never answers."""

import json
import threading

import pytest

from elasticdl.errors import UnavailableError
from elasticdl.master.moves.messages import AbandonMove, PrepareMove, PsProcess, TellMoved
from elasticdl.master.moves.mover import Mover

REPLICAS = tuple(PsProcess(index, f"session-{index}", f"host:{index}") for index in range(3))
DESCRIBED = {"model": "", "is_restored": False, "num_rows": [], "row_bytes": 0}


class SilentReplicas:
    """Replicas of which one is lost as it does a step; it and others do not answer from then on."""

    def __init__(self, step, lost=2, silent=(2,)):
        self.mover, self.asked = Mover(self._connect), []
        self._step, self._lost, self._silent = step, lost, silent
        self._never = threading.Event()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._never.set()

    def _connect(self, address):
        return SilentReplica(self, int(address.partition(":")[2]))

    def answer(self, index, step):
        (name,) = json.loads(step)
        self.asked.append((name, index))
        if name == self._step and index == self._lost:
            self.mover.losses.add(REPLICAS[index].session)
        if index == self._lost or (name == self._step and index in self._silent):
            self._never.wait()
        return json.dumps({"described": DESCRIBED} if name == "describe" else {})


class SilentReplica:
    def __init__(self, replicas, index):
        self._replicas, self._index = replicas, index

    def move_step(self, replica, step):
        assert replica == 0
        return self._replicas.answer(self._index, step)


def prepare(replicas):
    action = PrepareMove(1, 10, now=REPLICAS[:2], after=REPLICAS)
    replicas.mover.prepare(action, write=lambda cut: None, redo_log_of=lambda *_: None)


@pytest.mark.parametrize("silent", [(2,), (0, 2)])
def test_the_try_is_given_up_at_once_though_others_wait_for_the_lost_one(silent):
    with SilentReplicas("begin", silent=silent) as replicas:
        with pytest.raises(UnavailableError, match="ps replica 2 was lost"):
            prepare(replicas)
        assert {index for name, index in replicas.asked if name == "abandon"} >= {0, 1}


def test_the_others_are_told_that_the_model_has_moved():
    with SilentReplicas("switch") as replicas:
        assert replicas.mover.tell(TellMoved(1, 3, REPLICAS, ("host:0", "host:1", "host:2")))
        assert sorted(replicas.asked) == [("switch", index) for index in range(3)]


def test_one_that_was_lost_before_is_not_waited_for():
    with SilentReplicas("abandon") as replicas:
        replicas.mover.losses.add(REPLICAS[2].session)
        replicas.mover.abandon(AbandonMove(1, REPLICAS))
        assert ("abandon", 0) in replicas.asked
