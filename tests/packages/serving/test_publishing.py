"""Base and deltas are what the replicas hold, to the last bit, whatever comes between."""

import json
import random
import re
import shutil

import numpy as np
import pytest

from elasticdl._core import ServedTables
from elasticdl.errors import CheckpointError, ConfigError, ExportError
from elasticdl.locations import Url
from elasticdl.packages.serving import publishing
from elasticdl.packages.serving.chain import CURRENT, folder_of
from elasticdl.packages.serving.publishing import (
    Publisher,
    point_to,
    read_current,
    versions,
    write_program,
)
from elasticdl.packages.serving.versions import Versions
from tests.packages.serving.exporting_job import KEYS, PROGRAM, Job, program_at, publish, served


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path / "scratch")
    yield job
    job.close()


@pytest.fixture(params=["folder", "url"])
def directory(request, tmp_path):
    if request.param == "folder":
        return tmp_path / "exports"
    if request.param == "s3":
        return Url(f"{request.getfixturevalue('s3')}/exports-{tmp_path.name}")
    return Url(f"memory://exports-{tmp_path.name}")


@pytest.fixture
def publisher(directory):
    program_at(directory)
    return Publisher(directory, "job", full_every=4, keep=3)


def test_base_and_deltas_are_what_the_replicas_hold(job, publisher, directory, tmp_path):
    rng, chance = np.random.default_rng(0), random.Random(0)
    follower, loaded, kinds, gone = Versions(directory, tmp_path, tmp_path), None, set(), 0
    saved = tmp_path / "checkpoint"
    for step in range(40):
        for _ in range(chance.randrange(4)):
            job.update(rng, rng.integers(0, KEYS, 40))
        if chance.random() < 0.4:
            job.expire()
        if chance.random() < 0.1 and step:
            job.lose(chance.randrange(2), checkpoint(job, saved / str(step)))
        done = publish(publisher, job)
        kinds.add(done.is_base)
        gone += done.num_gone

        loaded = follower.next(loaded)
        afresh = Versions(directory, tmp_path).next(None)
        for version in (loaded, afresh):
            assert served(version) == [job.rows(0), job.rows(1)]
            np.testing.assert_array_equal(version.dense, job.client.pull([], False).dense)
        assert loaded.tables.num_layers < 8
        assert len(versions(directory)) <= 3 + 3  # three, and what they need

    assert kinds == {True, False}
    assert gone > 20


def checkpoint(job, folder):
    entries = [json.loads(store.checkpoint(str(folder))) for store in job.stores]
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "replicas": entries}))
    return folder


def test_a_lost_replica_writes_all_it_has_and_the_others_what_has_changed(
    job, publisher, directory, tmp_path
):
    rng = np.random.default_rng(1)
    job.update(rng, np.arange(100))
    publish(publisher, job)
    job.lose(1, checkpoint(job, tmp_path / "checkpoint"))
    job.update(rng, np.arange(10))

    assert not publish(publisher, job).is_base

    newest = versions(directory)[-1]
    assert [replica["whole"] for replica in newest.replicas] == [False, True]
    assert served(Versions(directory, tmp_path).next(None)) == [job.rows(0), job.rows(1)]


def test_a_version_that_fails_is_brought_by_the_next_one(job, publisher, directory, tmp_path):
    rng = np.random.default_rng(2)
    job.update(rng, np.arange(100))
    publish(publisher, job)
    job.update(rng, np.arange(50))

    def half(request):
        job.client.export(request)
        raise OSError(28, "No space left on device", "/disk")

    with pytest.raises(CheckpointError, match="No space left"):
        publisher.publish(job.task, PROGRAM, half)
    assert read_current(directory).version.number == 1
    for _ in range(8):
        job.update(rng, np.arange(50, 60))
    job.expire()
    done = publish(publisher, job)

    assert not done.is_base
    assert done.num_gone > 0
    assert served(Versions(directory, tmp_path).next(None)) == [job.rows(0), job.rows(1)]


def test_an_old_version_that_cannot_be_removed_stays_and_no_new_one_fails(
    job, publisher, directory, monkeypatch, caplog
):
    def refuses(place):
        raise PermissionError(13, "Permission denied", str(place))

    monkeypatch.setattr(publishing, "remove_tree", refuses)
    numbers = [publish(publisher, job).number for _ in range(10)]
    numbers.append(publish(Publisher(directory, "job", full_every=4, keep=3), job).number)

    assert numbers == list(range(1, 12))
    assert read_current(directory).version.number == 11
    assert "cannot be removed, and stay: " in caplog.text


@pytest.mark.parametrize("after", ["files", "manifest"])
def test_another_master_goes_on_where_the_one_before_was_killed(
    job, publisher, directory, tmp_path, monkeypatch, after
):
    rng = np.random.default_rng(3)
    job.update(rng, np.arange(100))
    publish(publisher, job)
    job.update(rng, np.arange(10))

    def killed(*arguments):
        raise KeyboardInterrupt

    name = "_point" if after == "manifest" else "_tables"
    monkeypatch.setattr(publishing, name, killed)
    with pytest.raises(KeyboardInterrupt):
        publish(publisher, job)
    monkeypatch.undo()
    assert read_current(directory).version.number == 1
    job.update(rng, np.arange(10, 20))

    another = Publisher(directory, "job", full_every=4, keep=3)
    done = publish(another, job)

    assert not done.is_base
    assert done.number == (3 if after == "manifest" else 2)
    assert served(Versions(directory, tmp_path).next(None)) == [job.rows(0), job.rows(1)]


def test_another_job_begins_with_a_base(job, publisher, directory, tmp_path):
    job.update(np.random.default_rng(4), np.arange(10))
    publish(publisher, job)

    another = Publisher(directory, "another", full_every=4, keep=3)

    assert publish(another, job).is_base


def test_another_model_begins_with_a_base_and_its_program_goes_with_its_versions(
    job, publisher, directory, tmp_path
):
    rng, follower = np.random.default_rng(4), Versions(directory, tmp_path)
    publish(publisher, job)
    loaded = follower.next(None)
    another = write_program(directory, lambda folder: (folder / "file").write_text("y"))
    for number in range(4):
        job.update(rng, np.arange(10))

        assert publish(publisher, job, another).is_base is (number == 0)

        loaded = follower.next(loaded)
        assert (loaded.program / "file").read_text() == "y"
    assert not (directory / PROGRAM.name).exists()  # the last version of it has gone
    assert [each.name for each in tmp_path.glob("program-*")] == [another.name]  # copies


@pytest.mark.s3
@pytest.mark.long
@pytest.mark.parametrize("directory", ["s3"], indirect=True)
def test_versions_lie_in_a_bucket(job, publisher, directory, tmp_path):
    rng = np.random.default_rng(7)
    for is_base in (True, False):
        job.update(rng, np.arange(50))
        assert publish(publisher, job).is_base is is_base

        assert served(Versions(directory, tmp_path).next(None)) == [job.rows(0), job.rows(1)]


def test_a_version_that_is_held_stays_and_the_job_goes_on(job, publisher, directory, tmp_path):
    rng = np.random.default_rng(5)
    seen = {}
    for number in range(1, 4):
        job.update(rng, np.arange(100))
        publish(publisher, job)
        seen[number] = [job.rows(0), job.rows(1)]
    follower = Versions(directory, tmp_path)
    loaded = follower.next(None)

    point_to(directory, 2)
    loaded = follower.next(loaded)

    assert (loaded.pointer.number, served(loaded)) == (2, seen[2])
    job.update(rng, np.arange(100))
    assert not publish(publisher, job).is_current
    assert follower.next(loaded) is None
    point_to(directory, None)
    assert served(follower.next(loaded)) == [job.rows(0), job.rows(1)]
    with pytest.raises(ExportError, match="there is no version 9"):
        point_to(directory, 9)


def test_a_version_that_is_held_while_the_disk_writes_stays(job, tmp_path, monkeypatch):
    directory, write = tmp_path / "exports", publishing.write_durably
    program_at(directory)
    publisher = Publisher(directory, "job")
    publish(publisher, job)

    def held_meanwhile(path, text):
        write(path, text)
        if path.name.startswith(f".{CURRENT}"):
            monkeypatch.setattr(publishing, "write_durably", write)
            point_to(directory, 1)

    monkeypatch.setattr(publishing, "write_durably", held_meanwhile)
    assert not publish(publisher, job).is_current
    assert read_current(directory).version.number == 1


def test_no_versions_heap_up_while_current_is_damaged(job, directory):
    program_at(directory)
    publisher = Publisher(directory, "job")
    publish(publisher, job)
    (directory / CURRENT).write_text("{}")
    for _ in range(3):
        with pytest.raises(ExportError, match=r"CURRENT: expected .* --use=newest writes it anew"):
            publish(publisher, job)
    assert [manifest.number for manifest in versions(directory)] == [1, 2]
    point_to(directory, None)
    assert publish(publisher, job).number == 3
    assert read_current(directory).version.number == 3


@pytest.mark.parametrize(
    ("file", "content", "found"),
    [
        (f"{folder_of(7)}/manifest.json", '{"format": 3, "version": 7}', "the checkpoint version-"),
        ("saved_model.pb", "", "a model of --output"),
    ],
)
def test_a_folder_of_other_results_is_refused_and_keeps_them(job, tmp_path, file, content, found):
    place = tmp_path / file
    place.parent.mkdir(exist_ok=True)
    place.write_text(content)
    for write in (
        lambda: program_at(tmp_path),
        lambda: publish(Publisher(tmp_path, "job", keep=1), job),
    ):
        with pytest.raises(ConfigError, match=f"versions of an export alone, found {found}"):
            write()
    assert place.exists()


def test_no_version_before_the_program(job, directory, tmp_path):
    with pytest.raises(CheckpointError, match="no worker has written the model's program"):
        Publisher(directory, "job").publish(1, None, job.client.export)
    with pytest.raises(CheckpointError, match=rf"{PROGRAM.name}: .* has been removed: put it back"):
        publish(Publisher(directory, "job"), job)


@pytest.fixture
def exported(job, tmp_path):
    """A folder with a base and three deltas, and a follower that has the second version."""
    directory = tmp_path / "exports"
    program_at(directory)
    publisher, rng = Publisher(directory, "job"), np.random.default_rng(6)
    follower = Versions(directory, tmp_path)
    for number in range(1, 5):
        job.update(rng, np.arange(20))
        publish(publisher, job)
        if number == 2:
            loaded = follower.next(None)
    return directory, follower, loaded


def damage_rows(directory):
    (path,) = (directory / folder_of(3)).glob("number/part-00000*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_manifest(directory):
    path = directory / folder_of(3) / "manifest.json"
    path.write_text(path.read_text().replace('"model_version": 3', '"model_version": 4'))


def lead_away(directory):
    path = directory / folder_of(4) / "manifest.json"
    path.write_text(re.sub('"path": "number/[^"]*"', '"path": "../x"', path.read_text()))


def swap(directory):
    (directory / folder_of(3)).rename(directory / "other")
    (directory / folder_of(4)).rename(directory / folder_of(3))
    (directory / "other").rename(directory / folder_of(4))


def repeat(directory):
    shutil.rmtree(directory / folder_of(3))
    shutil.copytree(directory / folder_of(2), directory / folder_of(3))


def remove(directory):
    (directory / folder_of(3)).rename(directory / "gone")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (remove, "version 3 is missing, which version 4 changes"),
        (repeat, "version 3: found version 2 in its place; versions are repeated"),
        (swap, "version 4: found version 3 in its place"),
        (damage_manifest, "version 3: its manifest is damaged or another one"),
        (damage_rows, "version 3: .*part-00000-of-00002.parquet: expected SHA-256"),
        (lead_away, "version 4: manifest.json: expected a path below the folder, found '../x'"),
        (lambda d: (d / CURRENT).write_text("{}"), "exports/CURRENT: expected the number"),
    ],
)
def test_what_is_not_right_is_refused_by_name(exported, harm, said):
    directory, follower, loaded = exported
    before = served(loaded)
    harm(directory)

    with pytest.raises(ExportError, match=said):
        follower.next(loaded)

    assert served(loaded) == before


def test_a_version_that_is_removed_while_it_is_loaded_names_the_flag(
    exported, tmp_path, monkeypatch
):
    directory, _follower, _loaded = exported
    program = Versions._program

    def removed_meanwhile(self, manifest):
        shutil.rmtree(directory / folder_of(1))
        return program(self, manifest)

    monkeypatch.setattr(Versions, "_program", removed_meanwhile)
    with pytest.raises(ExportError, match=r"version 1: it was removed while .* --keep_exports"):
        Versions(directory, tmp_path).next(None)


def test_a_program_in_the_place_of_another_one_is_refused(exported, tmp_path):
    directory, _follower, _loaded = exported
    another = write_program(directory, lambda folder: (folder / "file").write_text("y"))
    shutil.rmtree(directory / PROGRAM.name)
    (directory / another.name).rename(directory / PROGRAM.name)

    with pytest.raises(ExportError, match=f"version 4: its program {PROGRAM.name} was exchanged"):
        Versions(directory, tmp_path).next(None)


def test_the_program_is_the_one_that_was_checked_whatever_is_written_later(exported):
    directory, _follower, loaded = exported
    (directory / PROGRAM.name / "file").write_text("y")
    (directory / PROGRAM.name / "another").write_text("y")

    assert [(each.name, each.read_text()) for each in loaded.program.iterdir()] == [("file", "x")]


def test_tables_of_another_model_are_refused(exported):
    directory, _follower, loaded = exported
    tables = ServedTables([("other", 3), ("number", 1)])
    replicas = json.dumps(loaded.manifest.replicas)
    with pytest.raises(ExportError, match="expected table 'other'"):
        tables.apply(directory / folder_of(1), replicas)
