"""A job of real processes: started by its command, watched, struck, and gone when a test ends."""

import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import threading

from elasticdl.checkpoints.versions import versions
from elasticdl.cli.main import run_command
from elasticdl.errors import ElasticdlError
from elasticdl.observe.events import read_events
from scripts.chaos import job as real

GIVE_UP_SECONDS = 120.0  # of a master that does not answer
LOOK_SECONDS = 0.05  # a file tells nobody that it has grown


def elasticdl(command, *words, **flags):
    """Return the words that run a command of elasticdl; a flag that is None is left out."""
    given = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    return [sys.executable, "-m", "elasticdl.cli.main", command, *map(str, words), *given]


def run(words, **where):
    """Run a command to its end, which must be a good one."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, **where)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def in_process(*words, cwd):
    """Run a command of elasticdl in this process, which saves the time of a start."""
    words = [str(word) for word in words]
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run_command(words)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def serving(export, **where):
    """Serve an export, newest version first; yields the address."""
    words = elasticdl("serve", export, port=0)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **where) as process:
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"listens at (\S+)", line):
                    address = found.group(1)
                if "is served" in line:
                    break
            else:
                raise AssertionError("".join(said))
            yield address
        finally:
            process.terminate()


class RunningJob:
    """A command that starts a job; used as a context, at whose end the job is gone.

    The job's directory is `job` in its folder, and its summary, if it writes one, `summary.json`.
    """

    def __init__(self, folder, words, **where):
        """Prepare a job; `where` may be the `cwd` and the `env` of its command."""
        self.folder, self.job_dir = folder, folder / "job"
        self.words, self._where = words, where

    def __enter__(self):
        with (self.folder / "command.log").open("w") as log:
            self.process = subprocess.Popen(
                self.words, stdout=log, stderr=subprocess.STDOUT, **self._where
            )
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()

    def wait(self):
        """Wait for the end of the job, which must be a good one."""
        assert self.process.wait() == 0, self.log()

    def finish(self):
        """Wait for the end of the job; return its summary."""
        self.wait()
        return json.loads((self.folder / "summary.json").read_text())

    def is_running(self):
        """Return whether the job has not ended."""
        return self.process.poll() is None

    def printed(self):
        """Return what the command has printed."""
        return (self.folder / "command.log").read_text()

    def log(self):
        """Return what the command has printed, and the logs of all processes."""
        logs = sorted((self.job_dir / "logs").glob("*"))
        return "\n".join([self.printed(), *(file.read_text() for file in logs)])

    def events(self, kind):
        """Return the events of one kind, of all processes."""
        return [event for event in read_events(self.job_dir) if event["event"] == kind]

    def has_checkpoint(self):
        """Return whether the job has a whole checkpoint of its own."""
        return bool(versions(self.job_dir / "recovery"))

    def has_world_of(self, size):
        """Return whether the newest world has so many workers, of whom none was lost since."""
        worlds, losses = self.events("world"), self.events("lost")
        is_whole = bool(worlds) and len(worlds[-1]["workers"]) == size
        return is_whole and (not losses or losses[-1]["time"] < worlds[-1]["time"])

    def until_event(self, name, process=None, also=lambda event: True):
        """Wait for an event of the job, or of one of its processes, of which something holds."""

        def is_it(event):
            return process in (None, event.get("process")) and also(event)

        while True:
            may_come = self.is_running()  # looked at first: it may be the last event of the job
            if any(map(is_it, self.events(name))):
                return
            assert may_come, f"the job has ended without {name!r}\n{self.log()}"
            threading.Event().wait(LOOK_SECONDS)

    def until_progress(self, num_minibatches=1):
        """Wait until a worker has said that it has trained so many minibatches."""
        self.until_event("progress", also=lambda e: e["num_minibatches"] >= num_minibatches)

    @contextlib.contextmanager
    def master(self):
        """A client of the job's master."""
        client = real.connect(self.job_dir, self.process)
        assert client is not None, self.log()
        with contextlib.closing(client):
            yield client

    def move_to(self, count):
        """Ask for another number of ps replicas, once all are told of the move before."""
        while True:
            try:
                with self.master() as master:
                    return master.set_num_ps(count)
            except ElasticdlError as error:
                if "ask again when it has" not in str(error) or not self.is_running():
                    raise
            threading.Event().wait(LOOK_SECONDS)

    def statuses(self):
        """Yield what the master says of the job, until it ends."""
        with self.master() as master:
            yield from master.watch(give_up_seconds=GIVE_UP_SECONDS)

    def until(self, holds):
        """Return the first status of the job for which something holds."""
        for status in self.statuses():
            if holds(status):
                return status
        raise AssertionError(f"the job has ended before that\n{self.log()}")

    def until_trained(self, num_records, also=lambda: True):
        """Wait until more than some records are trained, and something else holds as well."""
        self.until(lambda status: status.records_done > num_records and also())

    def processes(self, role):
        """Return the living processes of a role, oldest first."""
        return real.processes(self.job_dir, role)

    def send(self, role, index=0, number=signal.SIGKILL):
        """Send a signal to a process of a role."""
        self.processes(role)[index].send_signal(number)

    def strike(self, *faults):
        """Kill a process of a role at each share of the job: faults are (share, role, index)."""
        due = list(faults)
        for status in self.statuses():
            if due and status.records_done > due[0][0] * status.records_total:
                _, role, index = due.pop(0)
                self.send(role, index)
        assert due == [], self.log()
