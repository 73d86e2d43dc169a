"""However the command ends, none of its processes is left. Real processes, fake roles."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FAKE_JOB = Path(__file__).with_name("fake_job.py")
SECONDS = 120.0  # a limit, never waited for

pytestmark = pytest.mark.timeout(300)


class Job:
    """A running fake job."""

    def __init__(self, directory: Path, *flags: str):
        self.directory = directory
        self.job_dir = directory / "job"
        self.summary_path = directory / "summary.json"
        zoo = directory / "zoo"
        zoo.mkdir()
        (zoo / "model.py").write_text("forward = feed = optimizer = None\n")
        (directory / "data.csv").write_text("1\n")
        os.mkfifo(directory / "end")
        self.cli = subprocess.Popen(
            [
                *(sys.executable, FAKE_JOB, "cli", "train"),
                *(f"--model_zoo={zoo}", "--model_def=model.forward"),
                f"--training_data={directory / 'data.csv'}",
                "--distribution_strategy=ParameterServerStrategy",
                *(f"--job_dir={self.job_dir}", f"--summary={self.summary_path}"),
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, text: str) -> str:
        """Read the command's output up to a line with a text."""
        for line in self.cli.stdout:
            if text in line:
                return line
        pytest.fail(f"the command ended without {text!r}: {self.cli.stderr.read()}")

    def master_pid(self) -> int:
        return json.loads((self.job_dir / "master.json").read_text())["pid"]

    def worker_pids(self) -> list[int]:
        return [json.loads(ref)["pid"] for ref in json.loads(self.read("handles.json"))]

    def read(self, name: str) -> str:
        return (self.job_dir / name).read_text()

    def end(self, how: str) -> tuple[str, str]:
        """Have the master end the job; return what the command printed from here on."""
        with (self.directory / "end").open("w") as file:
            file.write(how)
        return self.cli.communicate(timeout=SECONDS)

    def summary(self):
        return json.loads(self.summary_path.read_text())


@pytest.fixture
def start(tmp_path):
    jobs = []

    def start(*flags):
        jobs.append(Job(tmp_path, *flags))
        jobs[-1].wait_for("running |")
        return jobs[-1]

    yield start
    for job in jobs:
        job.cli.kill()
        job.cli.communicate()


def watch(*pids: int) -> list[int]:
    """Open pidfds of processes that live."""
    return [os.pidfd_open(pid) for pid in pids]


def assert_all_end(pidfds: list[int]) -> None:
    for pidfd in pidfds:
        readable, _, _ = select.select([pidfd], [], [], SECONDS)
        os.close(pidfd)
        assert readable, "a process is left"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_outlive_a_killed_master_and_the_job_leaves_nothing_but_its_results(start):
    job = start()
    first_master, workers = job.master_pid(), job.worker_pids()
    os.kill(first_master, signal.SIGKILL)  # the workers become the command's children
    job.wait_for("the master was killed by SIGKILL; it is started again")
    assert all(is_alive(pid) for pid in workers)
    (first,) = watch(workers[0])
    os.kill(workers[0], signal.SIGKILL)
    assert_all_end([first])
    processes = watch(workers[1])
    out, err = job.end("finished")
    assert (job.cli.returncode, err) == (0, "")
    assert not is_alive(workers[0])  # nor a zombie
    assert job.worker_pids() == workers  # adopted by the next master
    assert job.master_pid() != first_master
    assert_all_end(processes)
    assert "Ledger" in out
    summary = job.summary()
    assert summary["status"] == "finished"
    assert summary["metrics"] == {"auc": 0.75}
    assert summary["records_per_second"] == 2.5
    assert summary["ledger"] == [
        {"epoch": 0, "records": 10, "trained_once": 10, "repeated": 0, "lost": 0, "examples": 10}
    ]
    assert any("SIGKILL" in event["text"] for event in summary["events"])


def test_a_job_that_fails_says_why(start):
    job = start()
    processes = watch(job.master_pid(), *job.worker_pids())
    _, err = job.end("failed")
    assert (job.cli.returncode, err) == (1, "error: a task failed\n")
    assert_all_end(processes)
    assert job.summary()["status"] == "failed"


def test_kill_9_of_the_command_leaves_no_process(start):
    job = start()
    processes = watch(job.master_pid(), *job.worker_pids())
    job.cli.kill()
    assert_all_end(processes)


def test_a_signal_stops_the_job_in_order(start):
    job = start()
    processes = watch(job.master_pid(), *job.worker_pids())
    job.cli.terminate()
    out, err = job.cli.communicate(timeout=SECONDS)
    assert "stopping the job (SIGTERM)" in out
    assert (job.cli.returncode, err) == (130, "")
    assert_all_end(processes)
    assert "asked to end (SIGTERM)" in job.read("logs/worker-0.log")
    assert job.summary()["status"] == "stopped"
    assert job.summary()["message"] == "stopped by SIGTERM"


def test_a_second_ctrl_c_ends_the_job_at_once(start, tmp_path):
    (tmp_path / "deaf").touch()  # worker 1 would take the whole grace period
    job = start()
    processes = watch(job.master_pid(), *job.worker_pids())
    job.cli.send_signal(signal.SIGINT)
    job.wait_for("press Ctrl-C again")
    job.cli.send_signal(signal.SIGINT)
    _, err = job.cli.communicate(timeout=SECONDS)
    assert (job.cli.returncode, err) == (130, "")
    assert_all_end(processes)


def test_kill_9_of_the_command_after_the_masters_leaves_no_process(start):
    job = start()
    workers = watch(*job.worker_pids())
    os.kill(job.master_pid(), signal.SIGKILL)
    job.wait_for("started again")
    job.cli.kill()
    assert_all_end(workers)
