"""Which folder a user means, and who runs the job in it."""

import errno
import fcntl
import os

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.cli.preflight import _check_new_job_dir
from elasticdl.errors import LaunchError, UnknownJobError
from elasticdl.launchers import choose
from elasticdl.launchers.process import folder
from elasticdl.runtime import process
from elasticdl.runtime.credentials.authority import Authority


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
    for name in ("20251231-235959-3", "20260101-000000", "20260101-000000-9"):
        make(f"jobs/ads-{name}")
    newest = make("jobs/ads-20260101-000000-10", age_seconds=10)  # a report of the others is newer
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
    running = f"the job in this folder is running .*; elasticdl attach {job} shows it"
    with folder.held(job), pytest.raises(LaunchError, match=running):
        folder.held(job).__enter__()
    (job / process.CONFIG_FILE).unlink()  # as that of --distribution_strategy=Local
    with folder.held(job), pytest.raises(LaunchError, match="the command that runs it shows it"):
        folder.held(job).__enter__()


def test_file_system_without_locks_is_told(tmp_path, monkeypatch, caplog):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with folder.held(tmp_path):
        assert f"--job_dir={tmp_path}: this file system has no locks" in caplog.text


def test_of_two_commands_one_makes_the_folder_and_hands_it_on(tmp_path):
    words = {"model_def": "m.forward", "training_data": "d.csv", "job_dir": str(tmp_path / "job")}
    config = build_config("train", words)
    with folder.prepared(config) as held:
        handed_on = os.dup(held.lock.fileno())
        with pytest.raises(LaunchError, match="the job in this folder is running"):
            folder.prepare(config)
    with folder.held(held.job_dir, handed_on):
        for refused in (folder.prepare, lambda config: _check_new_job_dir(held.job_dir)):
            with pytest.raises(LaunchError, match="the job in this folder is running"):
                refused(config)
    assert folder.prepare(config) == held.job_dir


def test_what_a_killed_command_has_left_of_a_new_folder_is_made_anew(tmp_path):
    words = {"model_def": "m.forward", "training_data": "d.csv", "job_dir": str(tmp_path)}
    Authority.create(tmp_path / "tls", "before")
    (tmp_path / "tls" / "ca.key").write_bytes(b"torn")
    (tmp_path / process.TOKEN_FILE).write_text("torn")
    (tmp_path / f"{process.CONFIG_FILE}.77").write_text("torn")
    _check_new_job_dir(tmp_path)
    folder.prepare(build_config("train", words))
    process.read_token(tmp_path / process.TOKEN_FILE)
    Authority.load(tmp_path / "tls")


def test_jobs_without_a_folder_of_their_own_get_one_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = build_config("train", {"model_def": "m.forward", "training_data": "d.csv"})
    assert len({folder.prepare(config) for _ in range(5)}) == 5
