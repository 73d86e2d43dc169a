"""A checkpoint folder belongs to one running job."""

import errno
import fcntl
import re
import shutil
import subprocess
import sys

import pytest

from elasticdl.checkpoints.in_use import claimed
from elasticdl.errors import ConfigError
from elasticdl.locations import parse

HOLD = """
import sys
from pathlib import Path
from elasticdl.checkpoints.in_use import claimed
with claimed(Path(sys.argv[1]), "the first"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_folder_of_a_running_job_is_refused_until_it_is_gone(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "c")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        try:
            assert first.stdout.readline() == "held\n"
            complaint = f"a running job has this folder .the first, process {first.pid} on "
            with pytest.raises(ConfigError, match=complaint), claimed(tmp_path / "c", "the second"):
                pass
        finally:
            first.kill()  # it has no time to give anything back
    with claimed(tmp_path / "c", "the second") as warning:
        assert warning == ""


def test_file_system_without_locks_is_told(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with claimed(tmp_path, "a job") as warning:
        assert "this file system has no locks" in warning


def test_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match="cannot be written to"),
        claimed(tmp_path / "file" / "c", "a job"),
    ):
        pass


def test_nothing_is_left_of_a_job_that_wrote_nothing(tmp_path):
    with claimed(tmp_path / "new", "a job"):
        assert (tmp_path / "new").is_dir()
    assert not (tmp_path / "new").exists()
    (tmp_path / "old").mkdir()
    with claimed(tmp_path / "old", "a job"):
        pass
    assert list((tmp_path / "old").iterdir()) == []


def test_behind_a_url_the_user_is_told_of_who_may_have_the_place(tmp_path):
    place = parse(f"memory://{tmp_path}/in-use")
    with claimed(place, "one") as first:
        with claimed(place, "two") as second:  # there is nothing to refuse it with
            pass
        assert "there are no locks behind a URL" in first
        assert "last used" not in first
        assert re.search(r"last used by one, process \d+ on .*, which has not ended", second)
    assert list(place.iterdir()) == []


@pytest.mark.s3
def test_bucket_that_is_not_there_is_refused_at_once(s3):
    place = parse(f"{s3}-is-no-bucket/checkpoints")
    complaint = r"--checkpoint_dir=s3://.*: cannot be written to"
    with pytest.raises(ConfigError, match=complaint), claimed(place, "one"):
        pass


def test_a_folder_that_is_out_of_reach_at_the_end_fails_no_job(tmp_path):
    folder = tmp_path / "checkpoints"
    with claimed(folder, "job"):
        shutil.rmtree(folder)
        folder.write_text("something else")
    assert folder.read_text() == "something else"
