"""Checkpoints of real stores, in folders and behind URLs: what is one, and what comes back."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

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
from elasticdl.checkpoints import writing
from elasticdl.checkpoints.exports import SUCCESS, send_model
from elasticdl.checkpoints.remote import Sender, fetch, restore
from elasticdl.checkpoints.versions import (
    MANIFEST,
    bases,
    resolve,
    version_folder,
    versions,
    whole_versions,
)
from elasticdl.checkpoints.writing import delete_checkpoints, write_checkpoint
from elasticdl.errors import CheckpointError
from elasticdl.locations import is_remote, parse

TOKEN = b"the token of this job"
JOB, OTHER = "1" * 32, "2" * 32
NUM_KEYS, NUM_DENSE = 500, 7
MODEL = ModelDescription(
    tables=(
        TableDescription(
            "wide",
            3,
            Initializer("uniform", {"low": -1.0, "high": 1.0}),
            OptimizerSpec("adagrad", {"epsilon": 1e-7, "initial_accumulator": 0.1}),
        ),
    ),
    dense=(VariableDescription("w", (NUM_DENSE,), 0),),
    state=(),
    optimizer=OptimizerSpec("sgd"),
    seed=5,
)
NO_STATE = np.zeros(0, np.float32)


class Replicas:
    """Stores of a job behind servers, each with what sends its files."""

    def __init__(self, stores, scratch):
        self.stores = stores
        self.senders = [Sender(scratch / str(number)) for number in range(len(stores))]
        self._servers = [PsServer(store, "127.0.0.1", 0, TOKEN) for store in stores]
        self.client = PsClient.connect([s.address for s in self._servers], TOKEN, 0, 60.0)

    def train(self, index, keys):
        ids = np.asarray(keys, np.int64)
        pulled = self.client.pull([(0, ids)], training=True)
        gradient = np.arange(NUM_DENSE, dtype=np.float32)
        rows = [np.ones_like(pulled.rows[0])]
        self.client.push(pulled, rows, gradient, NO_STATE, 0.1, 1, 1, index, len(ids))

    def write(self, directory):
        entries = []
        for store, sender in zip(self.stores, self.senders, strict=True):
            entries += sender.write(
                directory, lambda folder, store=store: [store.checkpoint(folder)]
            )
        return entries

    def contents(self):
        """Return rows by key, the dense vector, and what was applied by all."""
        table = {}
        for keys, rows in self.client.scan(0):
            table |= dict(zip(keys.tolist(), map(tuple, rows.tolist()), strict=True))
        dense = self.client.pull([], training=False).dense.tolist()
        return table, dense, [replica[0, 1:].tolist() for replica in self.client.audit()]

    def close(self):
        for server in self._servers:
            server.stop()


@pytest.fixture
def make(tmp_path):
    made = []

    def make(stores):
        made.append(Replicas(stores, tmp_path / f"scratch-{len(made)}"))
        return made[-1]

    yield make
    for replicas in made:
        replicas.close()


@pytest.fixture
def trained(make):
    replicas = make([Store(index, 2) for index in range(2)])
    replicas.client.declare(json.dumps(asdict(MODEL)), np.zeros(NUM_DENSE, np.float32), NO_STATE)
    replicas.client.begin_task(1, 1)
    replicas.train(0, range(NUM_KEYS))
    return replicas


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_any_number_of_replicas_has_it_back(place, trained, make, num_replicas):
    folder = write_checkpoint(place, 1, "m", trained.write, job=JOB)
    assert folder == version_folder(place, 1, JOB)
    assert resolve(place) == folder

    back = make([restore(folder, index, num_replicas) for index in range(num_replicas)])

    table, dense, applied = trained.contents()
    assert back.contents() == (table, dense, applied[:1] * num_replicas)
    assert len(table) == NUM_KEYS


def test_a_replica_fetches_what_it_needs_and_no_more(trained, tmp_path):
    place = parse(f"memory://{tmp_path}")
    folder = write_checkpoint(place, 1, "m", trained.write)
    there = {path.name for path in folder.iterdir()} - {MANIFEST}
    for replica in range(2):
        scratch = tmp_path / str(replica)
        scratch.mkdir()
        found = {path.name for path in fetch(folder, replica, 2, scratch).iterdir()} - {MANIFEST}
        assert found == {name for name in there if f"replica-{replica:05}" in name}


def test_checkpoint_of_what_has_changed_comes_back_with_its_base(place, trained, make):
    write = partial(write_checkpoint, place, model="m", write=trained.write, job=JOB, full_every=3)
    write(version=1)
    trained.train(1, range(10))
    folder = write(version=2)
    assert bases(folder) == {"version-00000001"}

    back = make([restore(folder, index, 2) for index in range(2)])

    assert back.contents() == trained.contents()
    assert sorted(path.name for path in place.iterdir()) == ["version-00000001", "version-00000002"]


def test_same_version_is_replaced_and_old_ones_are_deleted(place, trained, make):
    for version in (1, 2, 3):
        write_checkpoint(place, version, "m", trained.write, job=JOB)
    trained.train(1, range(10))
    folder = write_checkpoint(place, 3, "m", trained.write, job=JOB)

    delete_checkpoints(place, [3], JOB)

    assert versions(place) == [3]
    back = make([restore(folder, index, 2) for index in range(2)])
    assert back.contents() == trained.contents()


def test_jobs_that_share_a_place_keep_their_versions_apart(place, trained):
    first = write_checkpoint(place, 7, "m", trained.write, job=JOB, clock=lambda: 10.0)
    second = write_checkpoint(place, 7, "m", trained.write, job=OTHER, clock=lambda: 20.0)
    assert first != second
    assert resolve(place) == second
    newer = write_checkpoint(place, 8, "m", trained.write, job=OTHER, clock=lambda: 30.0)
    delete_checkpoints(place, [8], OTHER)
    assert {whole.folder for whole in whole_versions(place)} == {first, newer}


def test_deletion_that_was_cut_short_is_finished(trained, tmp_path, monkeypatch):
    place = parse(f"memory://{tmp_path}/{__name__}")
    for version in (1, 2):
        write_checkpoint(place, version, "m", trained.write, job=JOB)

    def fail(folder):
        raise OSError("the connection is lost")

    with monkeypatch.context() as context:
        context.setattr(writing, "remove_tree", fail)
        with pytest.raises(CheckpointError, match="connection is lost"):
            delete_checkpoints(place, [2], JOB)
    assert versions(place) == [2]
    write_checkpoint(place, 3, "m", trained.write, job=JOB)
    assert sorted(path.name for path in place.iterdir()) == ["version-00000002", "version-00000003"]


def test_checkpoint_that_fails_leaves_nothing(place, trained):
    write_checkpoint(place, 1, "m", trained.write, job=JOB)

    def write(directory):
        trained.write(directory)
        raise CheckpointError("replica 1 is lost")

    with pytest.raises(CheckpointError, match="replica 1 is lost"):
        write_checkpoint(place, 2, "m", write, job=JOB)
    assert [path.name for path in place.iterdir()] == ["version-00000001"]


def test_files_of_a_store_that_fails_are_removed_here(tmp_path):
    def write(folder):
        (Path(folder) / "half").write_bytes(b"rows")
        raise CheckpointError("the disk is full")

    sender = Sender(tmp_path / "scratch")
    with pytest.raises(CheckpointError, match="the disk is full"):
        sender.write(parse(f"memory://{tmp_path}/{__name__}/version-00000001"), write)
    assert not [path for path in (tmp_path / "scratch").rglob("*") if path.is_file()]


def test_file_that_did_not_arrive_whole_makes_no_checkpoint(trained, tmp_path):
    place = parse(f"memory://{tmp_path}/{__name__}")

    def write(directory):
        entries = trained.write(directory)
        file = next(path for path in directory.iterdir() if "rows" in path.name)
        file.write_bytes(file.read_bytes()[:-1])
        return entries

    with pytest.raises(CheckpointError, match=r"rows-00\.safetensors: expected \d+ bytes, found"):
        write_checkpoint(place, 1, "m", write)
    assert versions(place) == []


def test_half_upload_of_a_killed_job_is_no_checkpoint_and_goes_with_the_next(trained, tmp_path):
    place = parse(f"memory://{tmp_path}/{__name__}")

    class Killed(BaseException):
        """Stands for SIGKILL: nothing is cleaned up."""

    def write(directory):
        trained.write(directory)
        kept[directory] = {path: path.read_bytes() for path in directory.iterdir()}
        raise Killed

    kept = {}
    for version, job in ((1, JOB), (2, OTHER)):
        with pytest.raises(Killed):
            write_checkpoint(place, version, "m", write, job=job)
    for files in kept.values():  # as they were when it was killed
        for path, content in files.items():
            path.write_bytes(content)
    assert versions(place) == []

    write_checkpoint(place, 3, "m", trained.write, job=JOB)

    assert versions(place) == [3]
    # What another job may be writing stays.
    names = ["version-00000002", "version-00000003"]
    assert sorted(path.name for path in place.iterdir()) == names


def test_manifest_that_names_what_is_gone_is_told_by_its_url(trained, tmp_path):
    place = parse(f"memory://{tmp_path}/{__name__}")
    folder = write_checkpoint(place, 1, "m", trained.write)
    next(path for path in folder.iterdir() if "rows" in path.name).unlink()
    with pytest.raises(CheckpointError, match=r"memory://.*rows-00\.safetensors"):
        restore(folder, 0, 2)


def test_exported_model_is_whole_once_its_mark_is_there(place, tmp_path):
    if not is_remote(place):
        pytest.skip("a folder is renamed")
    scratch = tmp_path / "scratch"
    (scratch / "variables").mkdir(parents=True)
    (scratch / "saved_model.pb").write_text("model")
    (scratch / "variables" / "data").write_text("numbers")

    send_model(scratch, place / "model", attempt=1)
    (scratch / "variables" / "data").unlink()
    send_model(scratch, place / "model", attempt=2)

    found = {path.name for path in (place / "model").iterdir()}
    assert found - {"variables"} == {"saved_model.pb", SUCCESS}
    assert not (place / "model" / "variables" / "data").exists()
