"""A ps replica that is asked to end: what it writes, for whom, and when it gives that up."""

import json
import threading
from dataclasses import asdict

import numpy as np
import pytest

from elasticdl._core import PsClient, PsServer, Store
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
    VariableDescription,
)
from elasticdl.checkpoints.hand_over import delete_hand_overs, hand_over_folder, hand_overs
from elasticdl.errors import CheckpointError, UnavailableError
from elasticdl.ps.departure import PsDeparture

LOOPBACK, TOKEN = "127.0.0.1", b"a token of sixteen bytes or more"
SOON_SECONDS = 0.2
MODEL = ModelDescription(
    tables=(
        TableDescription("one", 1, Initializer("constant", {"value": 1.0}), OptimizerSpec("sgd")),
    ),
    dense=(VariableDescription("w", (4,), 0),),
    state=(),
    optimizer=OptimizerSpec("sgd"),
    seed=5,
)
NO_STATE = np.zeros(0, np.float32)
noted = threading.Semaphore(0)


class PlayedMaster:
    """Answers as the master does, and notes what it is told."""

    def __init__(self, folder):
        self._folder = folder
        self.versions = []

    def leave_ps(self, index, give_up_seconds):
        return str(self._folder)

    def hand_over(self, index, version, give_up_seconds):
        self.versions.append(version)


@pytest.fixture
def served():
    """A store of one replica of two that has applied one update, behind its server."""
    stores = [Store(index, 2) for index in range(2)]
    servers = [PsServer(store, LOOPBACK, 0, TOKEN) for store in stores]
    client = PsClient.connect([s.address for s in servers], TOKEN, 0, 30.0)
    client.declare(json.dumps(asdict(MODEL)), np.zeros(4, np.float32), NO_STATE)
    client.begin_task(5, 1)
    ids = np.arange(10, dtype=np.int64)
    pulled = client.pull([(0, ids)], training=True)
    (rows,) = pulled.rows
    gradient = np.ones(4, np.float32)
    client.push(pulled, [np.ones_like(rows)], gradient, NO_STATE, 0.1, 5, 1, 0, 10)
    yield stores[1], servers[1], client
    for server in servers:
        server.stop()


def test_successor_has_all_that_was_ever_answered(served, tmp_path):
    _, server, _ = served
    folder = hand_over_folder(tmp_path / "recovery", 1, "a session")
    master = PlayedMaster(folder)
    departure = PsDeparture(master, 1, noted.release)
    departure.server = server

    departure.hand_over()

    assert master.versions == [1]
    successor = Store.restore(str(folder), 1, 2, keep_watermarks=True)
    server = PsServer(successor, LOOPBACK, 0, TOKEN)
    client = PsClient.connect([server.address], TOKEN, 0, 30.0, whole_job=False)
    assert [replica.tolist() for replica in client.audit()] == [[[5, 1, 10]]]
    server.stop()


def test_it_answers_nobody_once_it_has_handed_over(served, tmp_path):
    _, server, _ = served
    departure = PsDeparture(PlayedMaster(tmp_path / "there"), 1, noted.release)
    departure.server = server

    departure.hand_over()

    with pytest.raises(UnavailableError):
        PsClient.connect([server.address], TOKEN, 0, SOON_SECONDS, whole_job=False)


@pytest.mark.parametrize("why", ["the job has no use for it", "it serves nobody yet"])
def test_nothing_is_written_where_nobody_waits_for_it(why, served, tmp_path):
    _, server, client = served
    no_use = why == "the job has no use for it"
    master = PlayedMaster("" if no_use else tmp_path / "there")
    departure = PsDeparture(master, 1, noted.release)
    if no_use:
        departure.server = server

    departure.hand_over()

    assert master.versions == []
    assert list(tmp_path.iterdir()) == []
    assert len(client.audit()) == 2  # it still answers, until its process ends


def test_master_is_not_told_of_what_could_not_be_written(served, tmp_path, caplog):
    _, server, _ = served
    (tmp_path / "recovery").write_text("a file where a folder is expected")
    master = PlayedMaster(tmp_path / "recovery" / "hand-over")
    departure = PsDeparture(master, 1, noted.release)
    departure.server = server

    departure.hand_over()

    assert master.versions == []
    assert "cannot be handed over" in caplog.text


def test_disk_that_does_not_answer_is_given_up(tmp_path, caplog):
    answers = threading.Event()

    class HangingStore:
        def checkpoint(self, directory):
            answers.wait()
            raise CheckpointError("too late")

    class ServerOfIt:
        store = HangingStore()

        def stop(self):
            pass

    master = PlayedMaster(tmp_path / "there")
    departure = PsDeparture(master, 1, noted.release, longest_seconds=SOON_SECONDS)
    departure.server = ServerOfIt()

    departure.hand_over()
    answers.set()

    assert master.versions == []
    assert "could not be written within" in caplog.text


def test_half_written_hand_over_is_not_restored(served, tmp_path):
    store, _, _ = served
    folder = tmp_path / "there"
    store.checkpoint(str(folder))  # the manifest is missing

    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        Store.restore(str(folder), 1, 2)


def test_hand_overs_of_no_use_are_deleted_and_checkpoints_are_no_hand_overs(tmp_path):
    kept, old = (hand_over_folder(tmp_path, 1, session) for session in ("new", "old"))
    checkpoint = tmp_path / "version-00000001"
    for folder in (kept, old, checkpoint):
        folder.mkdir()
        (folder / "manifest.json").touch()

    assert hand_overs(tmp_path) == {kept, old}
    delete_hand_overs([old])

    assert sorted(tmp_path.iterdir()) == sorted([kept, checkpoint])
