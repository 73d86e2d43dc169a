"""Files that are the user's alone: nobody else can put one there, read one, or lock one unseen."""

import fcntl
import json
import os
import stat
import subprocess
import sys

import pytest

from elasticdl.checkpoints.in_use import LOCK_FILE, claimed
from elasticdl.cli.flags import build_config
from elasticdl.data import copies
from elasticdl.errors import ConfigError, DataError, LaunchError, StateError
from elasticdl.job.status import no_status
from elasticdl.launchers.process.folder import RUN_FILE, held, prepare
from elasticdl.launchers.process.job import LocalSubmitter
from elasticdl.rpc import messages
from elasticdl.runtime import process
from elasticdl.runtime.locks import lock_holders
from elasticdl.state.sqlite import SqliteState

LOCKER = """
import fcntl, sys
file = open(sys.argv[1], "a+")
getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def config(folder):
    words = {"model_def": "m.forward", "training_data": "d.csv", "job_dir": str(folder)}
    return build_config("train", words)


@pytest.fixture
def locked():
    """Have another process lock a file."""
    processes = []

    def lock(path, how="flock"):
        words = [sys.executable, "-c", LOCKER, str(path), how]
        stranger = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        processes.append(stranger)
        assert stranger.stdout.readline() == b"locked\n"
        return stranger.pid

    yield lock
    for stranger in processes:
        stranger.communicate()


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A compressed file, and the folder of copies that does not exist yet."""
    import gzip

    monkeypatch.delenv(copies.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n"))
    return path, tmp_path / "cache" / "elasticdl" / "data"


def test_copies_lie_below_the_users_cache_folder_and_are_the_users_alone(packed):
    path, folder = packed
    copy = copies.readable(str(path))
    assert os.path.dirname(copy) == str(folder)
    assert mode(folder) == 0o700
    assert copies.readable(str(path)) == copy


def test_what_a_killed_process_has_left_of_a_copy_is_removed(packed, monkeypatch):
    path, folder = packed
    with monkeypatch.context() as killed:
        killed.setattr(os, "replace", lambda *_: sys.exit("killed"))
        killed.setattr(copies.Path, "unlink", lambda *_, **__: None)
        with pytest.raises(SystemExit):
            copies.readable(str(path))
    assert list(folder.glob(".*.tmp"))
    copy = copies.readable(str(path))
    assert os.listdir(folder) == [os.path.basename(copy)]


@pytest.mark.parametrize("strange", ["owner", "mode", "link"])
def test_copy_that_another_may_have_put_there_is_not_read(packed, strange, tmp_path):
    path, _ = packed
    copy = copies._copy_of(str(path))
    copies.readable(str(path))
    if strange == "owner":
        if os.geteuid() != 0:
            pytest.skip("a file is given to another user by root alone")
        os.chown(copy, 4711, -1)
    elif strange == "mode":
        copy.chmod(0o666)
    else:
        copy.rename(tmp_path / "theirs")
        copy.symlink_to(tmp_path / "theirs")
    with pytest.raises(DataError, match="others can change or a link"):
        copies.readable(str(path))


@pytest.mark.parametrize("strange", ["owner", "mode"])
def test_folder_of_copies_in_which_others_may_write_is_refused(packed, strange):
    path, folder = packed
    copies.readable(str(path))
    if strange == "owner":
        if os.geteuid() != 0:
            pytest.skip("a folder is given to another user by root alone")
        os.chown(folder, 4711, -1)
    else:
        folder.chmod(0o777)
    with pytest.raises(DataError, match=r"user 4711|others may write to it"):
        copies.readable(str(path))


@pytest.mark.parametrize("before", [None, 0o755, 0o777])
def test_folder_of_a_job_is_its_owners_alone(tmp_path, before):
    folder = tmp_path / "job"
    if before is not None:
        folder.mkdir()
        folder.chmod(before)
    prepare(config(folder))
    assert mode(folder) == 0o700
    with held(folder):
        assert mode(folder / RUN_FILE) == 0o600


def test_lock_of_a_stranger_on_a_jobs_folder_is_told_with_its_holder(tmp_path, locked):
    folder = prepare(config(tmp_path / "job"))
    with held(folder):
        pass
    pid = locked(folder / RUN_FILE)
    with (
        pytest.raises(LaunchError, match=rf"locked by process {pid} of user .* not run the job"),
        held(folder),
    ):
        pass


def test_lock_of_a_stranger_on_a_journal_is_told_with_its_holder(tmp_path, locked):
    path = tmp_path / "state.sqlite"
    SqliteState(path).close()
    pid = locked(path, "lockf")
    with pytest.raises(StateError, match=f"process {pid} of user"):
        SqliteState(path)


def test_lock_of_a_stranger_on_a_checkpoint_folder_is_told_with_its_holder(tmp_path, locked):
    pid = locked(tmp_path / LOCK_FILE)
    with (
        pytest.raises(ConfigError, match=f"is locked by process {pid} of user"),
        claimed(tmp_path, "job"),
    ):
        pass


def test_nobody_holds_a_file_without_a_lock(tmp_path):
    path = tmp_path / "file"
    path.touch()
    assert lock_holders(path) == []
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert [one.pid for one in lock_holders(path)] == [os.getpid()]


def test_status_of_a_job_that_was_stopped_says_what_was_trained(tmp_path):
    import dataclasses

    folder = prepare(config(tmp_path / "job"))
    picture = dataclasses.replace(
        no_status("job", 1), status="running", records_done=300, records_total=900, seconds=5.0
    )
    (folder / process.BEFORE_FILE).write_text(messages.status_to_json(picture))
    (folder / "end.json").write_text(json.dumps({"status": "stopped", "message": "by SIGINT"}))
    end = LocalSubmitter().find(str(folder)).end(0.0)
    assert (end.status, end.message, end.records_done) == ("stopped", "by SIGINT", 300)
