"""What `elasticdl profile` does with the place of its file."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from elasticdl.errors import ConfigError, UnavailableError
from elasticdl.job import Role
from elasticdl.job.status import no_status
from elasticdl.launchers import choose
from elasticdl.packages.page.profile_command import profile
from elasticdl.runtime import process


class Job:
    """A job with one recording, which is there before it is asked for."""

    def __init__(self, job_dir):
        self.places = {"job_dir": str(job_dir)}
        self.folder = job_dir / process.PROFILE_FOLDER
        self.folder.mkdir()
        self.num_asked = 0

    def connect(self, timeout_seconds):
        return SimpleNamespace(close=lambda: None, status=self.status)

    def status(self, timeout_seconds, with_members):
        self.num_asked += 1
        recording = self.folder / "abcdefabcdef.worker-0.json"
        recording.write_text(json.dumps({"process": "worker-0", "spans": []}))
        return replace(no_status("job", 0), members=())

    def end(self, timeout_seconds):
        return None


@pytest.fixture
def job(tmp_path, monkeypatch):
    job = Job(tmp_path)
    monkeypatch.setattr(choose, "find", lambda name: job)
    request = SimpleNamespace(hex="abcdefabcdef")
    monkeypatch.setattr("elasticdl.packages.page.profile_command.uuid.uuid4", lambda: request)
    return job


def test_the_folder_of_the_file_is_looked_for_before_anything_is_recorded(job, tmp_path):
    output = tmp_path / "nowhere" / "trace.json"
    told = CliRunner().invoke(profile, ["job", f"--output={output}"])
    assert isinstance(told.exception, ConfigError)
    assert f"expected a folder {output.parent}" in str(told.exception)
    assert job.num_asked == 0


def test_a_file_that_cannot_be_written_is_named_and_leaves_no_recordings(job, tmp_path):
    told = CliRunner().invoke(profile, ["job", "--output=/dev/full"])
    assert isinstance(told.exception, ConfigError)
    assert "/dev/full: cannot be written: No space left" in str(told.exception)
    assert not list(job.folder.iterdir())

    told = CliRunner().invoke(profile, ["job", f"--output={tmp_path / 'trace.json'}"])
    assert (told.exit_code, (tmp_path / "trace.json").exists()) == (0, True), told.exception
    assert not list(job.folder.iterdir())


def test_what_came_too_late_for_an_earlier_command_goes(job, tmp_path):
    (job.folder / "012345012345.ps-0.json").write_text("{}")
    (job.folder / "012345012345.worker-1.framework" / "plugins").mkdir(parents=True)
    told = CliRunner().invoke(profile, ["job", f"--output={tmp_path / 'trace.json'}"])
    assert told.exit_code == 0, told.exception
    assert not list(job.folder.iterdir())


@pytest.mark.parametrize(("name", "beside"), [("t.json", "t"), ("t", "t.framework")])
def test_the_own_profile_of_a_framework_lies_beside_the_file(name, beside, job, tmp_path):
    (job.folder / "abcdefabcdef.worker-0.framework").mkdir()
    told = CliRunner().invoke(profile, ["job", "--framework", f"--output={tmp_path / name}"])
    assert told.exit_code == 0, told.exception
    assert (tmp_path / beside / "worker-0").is_dir()


def test_replicas_leave_no_recordings_if_no_worker_has_made_its_steps(job, monkeypatch):
    monkeypatch.setattr("elasticdl.packages.page.profile_command._REPLICA_SECONDS", 0.0)
    alive = [SimpleNamespace(state="alive", role=role, index=0) for role in (Role.WORKER, Role.PS)]
    status = replace(no_status("job", 0), members=alive)
    monkeypatch.setattr(job, "status", lambda timeout_seconds, with_members: status)

    def end(timeout_seconds):
        time.sleep(0.1)
        if not (job.folder / process.PROFILE_REQUEST).exists():
            (job.folder / "abcdefabcdef.ps-0.json").write_text("{}")

    monkeypatch.setattr(job, "end", end)
    told = CliRunner().invoke(profile, ["job", "--wait_seconds=1"])
    assert isinstance(told.exception, UnavailableError)
    assert not list(job.folder.iterdir())


def test_two_commands_at_once_do_not_take_the_request_of_each_other(job, tmp_path, monkeypatch):
    words = ["job", f"--output={tmp_path / 'trace.json'}"]
    others = []

    def end(timeout_seconds):  # it is asked while the first command waits for answers
        if not others:
            others.append(None)
            others[0] = CliRunner().invoke(profile, words)

    monkeypatch.setattr(job, "end", end)
    told = CliRunner().invoke(profile, words)
    assert told.exit_code == 0, told.exception
    assert isinstance(others[0].exception, UnavailableError)
    assert "another command profiles this job" in str(others[0].exception)
    assert CliRunner().invoke(profile, words).exit_code == 0
