"""What the interpreter does before it removes or replaces anything."""

import json

import pytest

from elasticdl.errors import StateError
from elasticdl.job import Shard
from elasticdl.master import actions
from elasticdl.master.core import JobCore
from elasticdl.master.interpreter import Interpreter
from elasticdl.master.tasks import make_tasks


class Access:
    """Replicas that forget what they are told to, which is noted."""

    def __init__(self, done):
        self._done = done

    def audit(self, first=0):
        self._done.append(f"forget before {first}")
        return []

    def tally(self):
        return {}

    def checkpoint(self, folder):
        self._done.append("parts")
        return [json.dumps({"version": 2, "tables": [], "files": []})]


@pytest.fixture
def make(master_kit, tmp_path):
    def make(done, sync):
        config = master_kit.config(num_ps=1, validation_data="")
        core = JobCore(config, make_tasks(config, [Shard("t-0", 0, 100)], [], []))
        run = lambda effect, line: effect()()  # noqa: E731
        return Interpreter(
            core, Access(done), None, tmp_path, "job", print, lambda event: None, run, sync
        )

    return make


ASKED = [
    actions.DeleteCheckpoints((2,), is_private=True),
    actions.DeleteHandOvers(),
    actions.AskAudit(lambda replicas: None, first=3),
]


@pytest.mark.parametrize("action", ASKED, ids=lambda action: type(action).__name__)
def test_nothing_is_removed_before_the_journal_that_says_so_is_synced(
    action, make, tmp_path, monkeypatch
):
    done = []
    for name in ("delete_checkpoints", "delete_hand_overs"):
        monkeypatch.setattr(
            f"elasticdl.master.interpreter.{name}", lambda *_: done.append("delete")
        )
    make(done, lambda: done.append("sync")).carry_out(action)
    assert done[0] == "sync"
    assert len(done) == 2

    def fails():
        raise StateError("the disk is gone")

    done.clear()
    make(done, fails).carry_out(action)
    assert done == []


def test_records_of_a_source_are_forgotten_once_the_journal_that_says_so_is_synced(make):
    class Source:
        def forget(self, positions):
            done.append(positions)

    done = []
    interpreter = make(done, lambda: done.append("sync"))
    for _ in range(2):
        interpreter.forget_records(Source(), {"topic-0": 3})
    assert done == ["sync", {"topic-0": 3}]

    def fails():
        raise StateError("the disk is gone")

    done.clear()
    make(done, fails).forget_records(Source(), {"topic-0": 3})
    assert done == []


def test_a_proof_that_has_replicas_forget_nothing_waits_for_no_disk(make):
    done = []
    make(done, lambda: done.append("sync")).carry_out(actions.AskAudit(lambda replicas: None))
    assert done == ["forget before 0"]


def test_a_checkpoint_appears_after_the_journal_of_what_its_parts_know_is_synced(make, tmp_path):
    """Only a machine that loses power shows it, between two checkpoints of the same version."""
    done = []

    def sync():
        done.append([path.name for path in tmp_path.rglob("version-*")])

    make(done, sync).carry_out(actions.WriteCheckpoint(2, is_private=True))
    assert done == ["parts", ["version-00000002.partial"]]
