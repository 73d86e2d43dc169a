"""Commands are viewers: a job goes on without them, can be found, looked at, scaled and stopped."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from elasticdl._core import RecordWriter
from tests.elastic.running_job import in_process

COUNTING = Path(__file__).resolve().parents[2] / "model_zoo" / "counting" / "model.py"
SECONDS = 120.0  # a limit, never waited for
NUM_IDS = 50
RECORDS = 2_000

# Each worker waits at a minibatch until the gate is open: somebody writes to the fifo.
GATE = """

import os
import threading

_feed_at_once, _calls = feed, []


def feed(records, mode, metadata):
    if threading.current_thread().name != "data check":  # the look before the first record
        _calls.append(mode)
    if len(_calls) > 5:
        open(__file__.replace("model.py", f"waits-{os.getpid()}"), "w").close()
        open(__file__.replace("model.py", "gate")).close()
    return _feed_at_once(records, mode, metadata)
"""

pytestmark = pytest.mark.timeout(300)


class Job:
    """A counting job in a folder, and the commands for it."""

    def __init__(self, folder, chaos):
        self.folder = folder
        self._chaos = chaos
        zoo = folder / "zoo"
        zoo.mkdir()
        (zoo / "model.py").write_text(COUNTING.read_text() + GATE)
        self.gate = zoo / "gate"
        os.mkfifo(self.gate)
        ids = np.random.default_rng(1).integers(0, NUM_IDS, RECORDS)
        self.occurrences = np.bincount(ids, minlength=NUM_IDS)
        with RecordWriter(str(folder / "data.recordio")) as writer:
            writer.write_many(str(id).encode() for id in ids.tolist())
        self.job_dir = folder / "job"
        self.flags = {
            "model_zoo": zoo,
            "model_def": "model.forward",
            "training_data": folder / "data.recordio",
            "distribution_strategy": "ParameterServerStrategy",
            "num_workers": 1,
            "num_ps_pods": 1,
            "minibatch_size": 10,
            "num_minibatches_per_task": 2,
            "heartbeat_seconds": 0.1,
            "recovery_seconds": 0.5,
            "output": folder / "export",
            "job_dir": self.job_dir,
        }
        self._open = []
        self._commands = []

    def start(self, *words, **flags):
        """Start `elasticdl train`; return the process."""
        flags = self.flags | flags
        return self.popen("train", *(f"--{n}={v}" for n, v in flags.items()), *words)

    def detach(self, **flags):
        """Start the job without a command that stays."""
        done = self.start("--detach", **flags)
        out, err = done.communicate(timeout=SECONDS)
        assert (done.returncode, err) == (0, ""), err
        assert "elasticdl attach job\n" in out  # as short as it can be said from there

    def popen(self, *words):
        command = subprocess.Popen(
            [sys.executable, "-m", "elasticdl.cli.main", *map(str, words)],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._commands.append(command)
        return command

    def command(self, name, *words):
        """Run a command for the job; return its exit code, output and errors."""
        done = in_process(name, *words, self.job_dir, cwd=self.folder)
        return done.returncode, done.stdout, done.stderr

    def status(self):
        code, out, err = self.command("status", "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    def status_when(self, is_so):
        """Ask for the status until something is so; the master may not listen yet."""
        deadline = time.monotonic() + SECONDS
        while True:
            code, out, err = self.command("status", "--json")
            assert code == 0 or time.monotonic() < deadline, err
            if code != 0:
                continue
            status = json.loads(out)
            if is_so(status):
                return status
            assert status["status"] not in ("finished", "failed", "stopped"), status["message"]

    def num_waiting(self):
        """Return how many workers have come to the gate."""
        return len(list(self.gate.parent.glob("waits-*")))

    def stop(self, *words):
        """Run `elasticdl stop`; the worker may finish the minibatch that it waits at."""
        process = self.popen("stop", *words, self.job_dir)
        log = self.job_dir / "logs" / "worker-0.log"
        while "asked to end" not in log.read_text() and process.poll() is None:
            time.sleep(0.02)  # a file tells nobody that it has grown
        self.open_gate()
        out, err = process.communicate(timeout=SECONDS)
        return process.returncode, out, err

    def open_gate(self):
        """Let workers go on, from now on."""
        self._open.append(os.open(self.gate, os.O_RDWR))

    def close_gate(self):
        """Let workers wait again."""
        while self._open:
            os.close(self._open.pop())

    def processes(self):
        """Return pidfds of the job's processes, by role; the root is "process"."""
        found = {}
        for process in psutil.process_iter(["pid", "cmdline"]):
            words = process.info["cmdline"] or []
            if str(self.job_dir) in words and "--job_dir" in words:
                role = words[words.index("-m") + 1].rpartition(".")[2]
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    found.setdefault(role, []).append(os.pidfd_open(process.info["pid"]))
        return found

    def root_pid(self):
        running = json.loads((self.job_dir / "running.json").read_text())
        return json.loads(running["process"])["pid"]

    def assert_exact(self):
        records = RECORDS
        (row,) = self.status()["ledger"]
        assert (row["trained_once"], row["repeated"], row["lost"]) == (records, 0, 0)
        counts = self._chaos.counts_of(self.folder / "export", NUM_IDS)
        np.testing.assert_array_equal(counts, self.occurrences)

    def close(self):
        self.close_gate()
        for pidfd in self.processes().get("process", []):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for command in self._commands:  # of a test that failed
            with command:
                command.kill()


@pytest.fixture
def job(tmp_path, chaos):
    job = Job(tmp_path, chaos)
    yield job
    job.close()


@pytest.fixture(scope="module")
def waiting_job(tmp_path_factory, chaos):
    """A job that trains no further and is not ended by the tests that ask it."""
    job = Job(tmp_path_factory.mktemp("waiting"), chaos)
    job.detach(checkpoint_dir=job.folder / "checkpoints")
    job.status_when(is_training)
    yield job
    job.close()


def assert_all_end(processes):
    for role, pidfds in processes.items():
        for pidfd in pidfds:
            readable, _, _ = select.select([pidfd], [], [], SECONDS)
            os.close(pidfd)
            assert readable, f"a {role} is left"


def is_training(status):
    return any(member["tasks_done"] for member in status["members"])


def have_all_come(status):
    """Return whether the processes of a job that has begun, or goes on, have registered."""
    return {m["role"] for m in status["members"] if m["state"] == "alive"} == {"worker", "ps"}


def test_a_job_goes_on_without_its_viewers_and_is_shown_to_its_end(job):
    viewer = job.start("--wait")
    line = next(line for line in viewer.stdout if "is here" in line)
    assert "worker 0" in line
    viewer.kill()
    viewer.communicate()
    second = job.popen("attach", job.job_dir)
    assert next(line for line in second.stdout if "running" in line)
    second.kill()
    second.communicate()
    third = job.popen("attach", job.job_dir)
    assert next(line for line in third.stdout if "running" in line)
    processes = job.processes()
    assert set(processes) == {"process", "master", "worker", "ps"}
    (master,) = processes["master"]
    signal.pidfd_send_signal(master, signal.SIGKILL)
    assert next(line for line in third.stdout if "it is started again" in line)
    assert next(line for line in third.stdout if "the job goes on" in line)
    job.open_gate()
    out, err = third.communicate(timeout=SECONDS)
    assert (third.returncode, err) == (0, "")
    assert "Ledger" in out
    assert_all_end(processes)
    job.assert_exact()


def test_ctrl_c_leaves_a_job_that_goes_on(waiting_job):
    job = waiting_job
    viewer = job.popen("attach", job.job_dir)
    assert next(line for line in viewer.stdout if " | " in line)
    viewer.send_signal(signal.SIGINT)
    out, err = viewer.communicate(timeout=SECONDS)
    assert (viewer.returncode, err) == (130, "")
    assert "elasticdl attach job\n" in out
    assert job.status()["status"] == "running"


def test_a_job_that_is_stopped_is_cancelled_and_leaves_nothing(job):
    job.detach(checkpoint_dir=job.folder / "checkpoints", checkpoint_steps=3)
    job.status_when(lambda status: status["checkpoints"])
    processes = job.processes()
    code, out, err = job.stop()
    assert (code, err) == (0, "")
    assert out.startswith("job: failed (stopped: by elasticdl stop)\n")
    assert "--checkpoint_dir_for_init begins there" in out
    assert_all_end(processes)
    code, _, err = job.command("attach")
    assert (code, err) == (1, "error: stopped: by elasticdl stop\n")
    assert job.command("stop")[0] == 1


def test_a_job_that_is_paused_or_killed_is_gone_on_with_by_the_same_command(job):
    job.detach()
    job.status_when(is_training)
    processes = job.processes()
    code, out, err = job.stop("--pause")
    assert (code, err) == (0, "")
    assert "the same command with --job_dir=job continues the job" in out
    assert_all_end(processes)
    assert job.command("attach")[0] == 130
    assert_no_orphan_is_left_when_the_root_is_killed(job)
    job.open_gate()
    job.detach()
    assert job.command("attach")[0] == 0
    job.assert_exact()


def assert_no_orphan_is_left_when_the_root_is_killed(job):
    """Go on with the job, and kill its root."""
    job.close_gate()
    job.detach()
    viewer = job.popen("attach", job.job_dir)
    assert next(line for line in viewer.stdout if "running" in line)
    job.status_when(have_all_come)  # the master says that the job runs before they have started
    processes = job.processes()
    assert set(processes) == {"process", "master", "worker", "ps"}
    os.kill(job.root_pid(), signal.SIGKILL)
    assert_all_end(processes)
    viewer.communicate(timeout=SECONDS)
    assert viewer.returncode == 130
    assert job.status()["message"] == "its processes were killed"


def test_a_job_can_be_ended_without_its_master_and_a_log_that_never_was_is_told(job):
    job.detach()
    job.status_when(is_training)
    log = job.popen("logs", "-f", job.job_dir, "worker-7")
    assert log.stderr.readline() == "worker-7 has not begun; waiting for it\n"
    processes = job.processes()
    (master,) = processes["master"]
    signal.pidfd_send_signal(master, signal.SIGSTOP)
    code, _, err = job.command("stop", "--now")
    assert (code, err) == (0, "")
    assert_all_end(processes)
    _, err = log.communicate(timeout=SECONDS)
    assert (log.returncode, err) == (
        1,
        f"error: expected a log of worker-7 at {job.job_dir}/logs/worker-7.log\n",
    )


def test_one_job_runs_in_a_folder_at_a_time(waiting_job):
    job = waiting_job
    again = job.start("--detach", checkpoint_dir=job.folder / "checkpoints")
    _, err = again.communicate(timeout=SECONDS)
    assert again.returncode == 1
    assert re.search(
        rf"the job in this folder is running .*; elasticdl attach {re.escape(str(job.job_dir))}",
        err,
    )
    assert job.status()["status"] == "running"  # the first one does not notice


def test_a_checkpoint_folder_belongs_to_the_job_and_not_to_its_command(waiting_job, tmp_path):
    job = waiting_job
    folder = job.folder / "checkpoints"
    other = job.start(
        "--detach", checkpoint_dir=folder, job_dir=tmp_path / "other", output=tmp_path / "model"
    )
    _, err = other.communicate(timeout=SECONDS)
    assert other.returncode == 1
    assert re.search(r"a running job has this folder \(job in .*/job, process \d+ on", err)


@pytest.mark.long
def test_workers_come_and_go_and_logs_and_events_are_followed_to_the_end(job):
    job.detach()
    log = job.popen("logs", "-f", job.job_dir, "worker-1")
    assert "worker-1 has not begun; waiting for it" in log.stderr.readline()
    everything = job.popen("logs", "-f", job.job_dir)
    events = job.popen("events", "-f", "--json", job.job_dir)
    assert next(line for line in events.stdout if '"registered"' in line)
    code, out, _ = job.command("scale", "--workers=3")
    assert (code, out) == (0, "job goes on with 3 workers\n")
    grown = job.status_when(
        lambda status: status["num_workers"] == 3 and job.num_waiting() == 3  # at the gate
    )
    states = {(m["role"], m["index"]): m["state"] for m in grown["members"]}
    assert states == {
        (role, n): "alive" for role, n in [("ps", 0), *(("worker", n) for n in range(3))]
    }
    assert all(member["pid"] for member in grown["members"])
    assert job.command("scale", "--workers=1")[0] == 0
    leaving = [m["index"] for m in job.status()["members"] if m["state"] == "leaving"]
    assert leaving == [1, 2]
    job.open_gate()
    found = [json.loads(line) for line in events.communicate(timeout=SECONDS)[0].splitlines()]
    assert found[-1]["time"] >= found[0]["time"]
    assert "ended" in [event["event"] for event in found if event["role"] == "master"]
    assert "worker-1 INFO" in log.communicate(timeout=SECONDS)[0]
    out = everything.communicate(timeout=SECONDS)[0]
    for who in ("master-0", "ps-0", "worker-0", "worker-1"):
        assert f"{who} | " in out
    assert {log.returncode, everything.returncode, events.returncode} == {0}
    code, out, _ = job.command("events")
    assert code == 0
    assert "the job is finished" in out
    job.assert_exact()
    code, _, err = job.command("scale", "--workers=2")
    assert (code, err) == (1, f"error: the job in {job.job_dir} has ended\n")


def test_a_job_that_is_not_there_is_told_with_where_it_was_looked_for(job):
    code, _, err = job.command("status")
    assert code == 1
    assert err.startswith(f"error: there is no job '{job.job_dir}'; looked for a folder")
