import json
import os
import subprocess
import sys

import pytest

from elasticdl.checkpoints.versions import (
    bases,
    parse_manifest,
    resolve,
    version_folder,
    versions,
)
from elasticdl.checkpoints.writing import delete_checkpoints, set_modes, write_checkpoint
from elasticdl.errors import CheckpointError

ONE, OTHER = "1" * 32, "2" * 32  # identities of jobs


def test_what_is_written_has_the_modes_of_its_folder(tmp_path):
    folder = tmp_path / "export"
    (folder / "tables").mkdir(parents=True)
    (folder / "tables" / "rows").touch(0o600)
    (folder / "tables").chmod(0o700)
    folder.chmod(0o755)
    set_modes(folder)
    modes = [oct(path.stat().st_mode)[-3:] for path in (folder / "tables", *folder.rglob("rows"))]
    assert modes == ["755", "644"]


def rows(content="rows"):
    def write(directory):
        (directory / "rows-0").write_text(content)
        return ['{"replica": 0, "files": ["rows-0"]}']

    return write


def fails(error):
    def write(directory):
        (directory / "rows-0").write_text("half of the")
        raise error

    return write


def test_checkpoint_has_files_and_manifest(tmp_path):
    folder = write_checkpoint(
        tmp_path / "new" / "dir", 42, "zoo.model", rows(), job=ONE, clock=lambda: 5.0
    )
    assert folder == version_folder(tmp_path / "new" / "dir", 42)
    assert folder.name == "version-00000042"
    assert (folder / "rows-0").read_text() == "rows"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest.pop("checksum").startswith("crc32c:")
    assert manifest == {
        "format": 3,
        "version": 42,
        "model": "zoo.model",
        "job": ONE,
        "written": 5.0,
        "replicas": [{"replica": 0, "files": ["rows-0"]}],
    }
    assert resolve(tmp_path / "new" / "dir") == folder


def test_each_flipped_bit_of_a_manifest_is_told(tmp_path):
    whole = (write_checkpoint(tmp_path, 1, "m", rows(), job=ONE) / "manifest.json").read_bytes()
    assert parse_manifest(whole)["job"] == ONE
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(
            ValueError, match=r"checksum|JSON|delimiter|utf|Expecting|Invalid|Extra"
        ):
            parse_manifest(bytes(damaged))


def test_a_manifest_of_an_earlier_version_is_read_and_said(tmp_path, caplog):
    folder = write_checkpoint(tmp_path, 1, "m", rows())
    assert resolve(tmp_path) == folder
    assert caplog.text == ""
    (folder / "manifest.json").write_text('{"format": 1, "replicas": []}')
    assert resolve(tmp_path) == resolve(folder) == folder
    assert "manifest.json: has no checksum of itself, as an earlier version" in caplog.text


@pytest.mark.parametrize(
    "error", [CheckpointError("replica 1: No space left on device"), KeyboardInterrupt()]
)
def test_failed_checkpoint_leaves_the_one_before_and_nothing_else(tmp_path, error):
    write_checkpoint(tmp_path, 1, "m", rows())
    with pytest.raises(type(error)):
        write_checkpoint(tmp_path, 2, "m", fails(error))
    assert [path.name for path in tmp_path.iterdir()] == ["version-00000001"]
    assert versions(tmp_path) == [1]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_is_named(tmp_path):
    def write(directory):
        (directory / "manifest.json").symlink_to("/dev/full")
        return []

    with pytest.raises(CheckpointError, match=r"No space left on device; the checkpoints before"):
        write_checkpoint(tmp_path, 2, "m", write)
    assert list(tmp_path.iterdir()) == []


def test_place_that_is_no_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file.*: Not a directory"):
        write_checkpoint(tmp_path / "file", 1, "m", rows())


def test_same_version_is_replaced_as_a_whole(tmp_path):
    write_checkpoint(tmp_path, 1, "m", rows("old"))
    folder = write_checkpoint(tmp_path, 1, "m", rows("new"))
    assert (folder / "rows-0").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_leftovers_of_a_killed_master_are_removed(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from elasticdl.checkpoints.writing import write_checkpoint\n"
        "write_checkpoint(Path(sys.argv[1]), 7, 'm', lambda d: os.kill(os.getpid(), 9))\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert [path.name for path in tmp_path.iterdir()] == ["version-00000007.partial"]
    assert versions(tmp_path) == []
    write_checkpoint(tmp_path, 8, "m", rows())
    assert [path.name for path in tmp_path.iterdir()] == ["version-00000008"]


def test_old_checkpoints_are_deleted(tmp_path):
    for version in (1, 2, 3, 4):
        write_checkpoint(tmp_path, version, "m", rows(), job=ONE)
    delete_checkpoints(tmp_path, [2, 3], ONE)
    assert versions(tmp_path) == [2, 3, 4]  # the newest is in nobody's way


def test_rest_of_a_deletion_that_was_killed_is_removed(tmp_path):
    code = (
        "import os, sys; from pathlib import Path\n"
        "from elasticdl.checkpoints import writing\n"
        "writing.remove_tree = lambda folder: os.kill(os.getpid(), 9)\n"
        f"writing.delete_checkpoints(Path(sys.argv[1]), [2], {ONE!r})\n"
    )
    for version in (1, 2):
        write_checkpoint(tmp_path, version, "m", rows(), job=ONE)
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert versions(tmp_path) == [2]
    assert len(list(tmp_path.iterdir())) == 2
    write_checkpoint(tmp_path, 3, "m", rows(), job=ONE)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "version-00000002",
        "version-00000003",
    ]


def based(directory):
    """Write as a replica does that knows its base: rows that it lacks are there."""
    entry = {"replica": 0, "files": []}
    wish = directory / "base.json"
    if wish.exists():
        entry["base"] = {"folder": json.loads(wish.read_text())["base"], "files": []}
    return [json.dumps(entry)]


def test_one_of_so_many_checkpoints_has_all_rows(tmp_path):
    lacking = []
    for version in range(1, 8):
        folder = write_checkpoint(tmp_path, version, "m", based, full_every=3)
        assert not (folder / "base.json").exists()
        lacking.append(bases(folder))
    first, fourth = {"version-00000001"}, {"version-00000004"}
    assert lacking == [set(), first, first, set(), fourth, fourth, set()]


def test_replicas_that_write_all_rows_make_a_checkpoint_without_a_base(tmp_path):
    write_checkpoint(tmp_path, 1, "m", rows(), full_every=2)
    folder = write_checkpoint(tmp_path, 2, "m", rows(), full_every=2)
    assert bases(folder) == set()
    # Written again, it is not its own base.
    again = write_checkpoint(tmp_path, 2, "m", based, full_every=2)
    assert bases(again) == {"version-00000001"}


def test_a_base_is_deleted_with_the_last_that_needs_it(tmp_path):
    for version in range(1, 5):
        write_checkpoint(tmp_path, version, "m", based, full_every=3, job=ONE)
    delete_checkpoints(tmp_path, [2, 3, 4], ONE)
    assert versions(tmp_path) == [1, 2, 3, 4]
    delete_checkpoints(tmp_path, [3, 4], ONE)
    assert versions(tmp_path) == [1, 3, 4]
    delete_checkpoints(tmp_path, [4], ONE)
    assert versions(tmp_path) == [4]


def test_jobs_that_share_a_folder_keep_their_versions_apart(tmp_path):
    first = write_checkpoint(tmp_path, 7, "m", rows("one"), job=ONE)
    second = write_checkpoint(tmp_path, 7, "m", rows("other"), job=OTHER)
    write_checkpoint(tmp_path, 7, "m", rows("other, again"), job=OTHER)
    assert (first / "rows-0").read_text() == "one"
    assert (second / "rows-0").read_text() == "other, again"
    assert version_folder(tmp_path, 7, ONE) == first
    assert version_folder(tmp_path, 7, OTHER) == second
    newer = write_checkpoint(tmp_path, 8, "m", rows(), job=OTHER)
    delete_checkpoints(tmp_path, [8], OTHER)
    assert set(tmp_path.iterdir()) == {first, newer}


def test_job_bases_no_checkpoint_on_another_jobs(tmp_path):
    write_checkpoint(tmp_path, 1, "m", rows(), full_every=2, job=ONE)

    def write(directory):
        assert not (directory / "base.json").exists()
        return rows()(directory)

    write_checkpoint(tmp_path, 2, "m", write, full_every=2, job=OTHER)


def test_newest_is_that_of_the_job_which_has_written_last(tmp_path):
    for job, version, seconds in ((ONE, 5000, 10.0), (OTHER, 100, 20.0), (OTHER, 300, 30.0)):
        write_checkpoint(tmp_path, version, "m", rows(), job=job, clock=lambda s=seconds: s)
    assert resolve(tmp_path) == version_folder(tmp_path, 300)
    write_checkpoint(tmp_path, 5100, "m", rows(), job=ONE, clock=lambda: 40.0)
    assert resolve(tmp_path) == version_folder(tmp_path, 5100)
