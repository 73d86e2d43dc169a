"""However the command ends, none of a job's processes is left: the real roles, at work."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl._core import RecordWriter

ROOT = Path(__file__).parents[2]
SECONDS = 120.0  # a limit, never waited for

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def job(tmp_path):
    """A job that would train for hours; entered once all of its processes take part."""
    with RecordWriter(str(tmp_path / "data.recordio")) as writer:
        for number in range(2_000):
            writer.write(str(number % 50).encode())
    cli = subprocess.Popen(
        [
            *(sys.executable, "-m", "elasticdl.cli.main", "train"),
            *(f"--model_zoo={ROOT / 'model_zoo'}", "--model_def=counting.model.forward"),
            *(f"--training_data={tmp_path / 'data.recordio'}", "--num_epochs=1000000"),
            *("--distribution_strategy=ParameterServerStrategy", "--num_workers=2"),
            *("--num_ps_pods=2", f"--job_dir={tmp_path / 'job'}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for line in cli.stdout:
            if "] running " in line and "2 workers, 2 ps replicas" in line:
                break
        else:
            pytest.fail(f"the job ended: {cli.stderr.read()}")
        yield cli
    finally:
        cli.kill()
        cli.communicate()


def pids_of(job_dir: Path) -> dict[int, str]:
    """Find the processes that were started for a job: pid -> module."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if str(job_dir) in words:
                found[int(entry.name)] = words[words.index("-m") + 1]
    return found


def assert_all_end(pidfds):
    for pidfd in pidfds:
        readable, _, _ = select.select([pidfd], [], [], SECONDS)
        os.close(pidfd)
        assert readable, "a process is left"


def test_no_process_is_left(job, tmp_path):
    pids = pids_of(tmp_path / "job")
    assert sorted(pids.values()) == [
        "elasticdl.launchers.process",
        "elasticdl.master",
        *["elasticdl.ps"] * 2,
        *["elasticdl.worker"] * 2,
    ]
    pidfds = [os.pidfd_open(pid) for pid in pids]
    job.kill()
    _, err = job.communicate(timeout=SECONDS)
    assert_all_end(pidfds)
    assert pids_of(tmp_path / "job") == {}
    assert (job.returncode, err) == (-9, "")
