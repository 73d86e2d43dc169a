"""Which folder a user means, and who runs the job in it."""

import errno
import fcntl
import os

import pytest

from elasticdl.errors import LaunchError, UnknownJobError
from elasticdl.launchers import choose
from elasticdl.launchers.process import folder
from elasticdl.runtime import process


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def make(path, age_seconds=0.0):
        made = tmp_path / path
        made.mkdir(parents=True)
        (made / process.CONFIG_FILE).write_text("{}")
        now = made.stat().st_mtime
        os.utime(made, (now - age_seconds, now - age_seconds))
        return made

    return make


def test_a_name_means_the_newest_folder_of_that_job(make):
    make("jobs/ads-20260101-000000", age_seconds=30)
    newest = make("jobs/ads-20260101-000000-2", age_seconds=10)
    make("jobs/ads-large-20260101-000001")
    assert folder.find("ads") == newest
    assert folder.find("ads-20260101-000000") == newest.with_name("ads-20260101-000000")
    assert folder.find("ads-large") is not None
    assert folder.find("large") is None


def test_a_path_means_itself(make, tmp_path):
    job = make("deep/job")
    assert folder.find("deep/job") == folder.find(str(job)) == job
    assert folder.find("deep") is None


def test_a_job_that_is_not_there_is_told_with_the_places(make):
    with pytest.raises(UnknownJobError, match=r"no job 'ads'; looked for .*jobs/ads and -TIME"):
        choose.find("ads")


def test_one_process_runs_a_job(make):
    job = make("jobs/ads")
    with folder.held(job), pytest.raises(LaunchError, match="the job in this folder is running"):
        folder.held(job).__enter__()
    with folder.held(job):
        pass


def test_file_system_without_locks_is_told(tmp_path, monkeypatch, caplog):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with folder.held(tmp_path):
        assert f"--job_dir={tmp_path}: this file system has no locks" in caplog.text
