"""What every launcher promises the master. A new launcher joins by a line in `LAUNCHERS`."""

import dataclasses
import os
import queue
import sys

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, PendingProcess, ProcessSpec, Started
from elasticdl.launchers.process.launcher import ProcessLauncher
from elasticdl.launchers.process.logs import log_path
from elasticdl.packages.slurm.launcher import SlurmLauncher

ON_CLUSTER = [pytest.mark.long, pytest.mark.timeout(400)]
LAUNCHERS = ["process", *(pytest.param(name, marks=ON_CLUSTER) for name in ("slurm", "ray"))]
SECONDS = 120.0  # more than enough; a limit, never waited for
LONG = 3600.0

on_this_machine = pytest.mark.parametrize("make_launcher", ["process"], indirect=True)
ON_A_CLUSTER = {
    "model_def": "a.forward",
    "training_data": "/data",
    "worker_resource_request": "cpu=1,memory=100Mi",
}

FOREVER = "import threading; threading.Event().wait()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + FOREVER


class Watcher:
    """A launcher with the exits that it reported, and all that it reported."""

    def __init__(self, make):
        self.exits = queue.Queue()
        self.events = []
        self.launcher = make(self.take)

    def take(self, event):
        self.events.append(event)
        if isinstance(event, Exited):
            self.exits.put(event)

    def next_exit(self):
        return self.exits.get(timeout=SECONDS)


@pytest.fixture(params=LAUNCHERS)
def make_launcher(request, tmp_path, monkeypatch):
    """Return what makes a launcher, given whom to tell; the job's folder is `tmp_path`."""
    if request.param == "process":
        monkeypatch.setenv("TMPDIR", str(tmp_path))  # nothing is left where others look
        return lambda on_event: ProcessLauncher(on_event, tmp_path)
    config = build_config("train", ON_A_CLUSTER | {"launcher": request.param})
    if request.param == "ray":
        return request.getfixturevalue("ray_cluster").launcher_of(config, tmp_path)
    cluster = request.getfixturevalue("slurm")
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.environment[name])
    return lambda on_event: SlurmLauncher(config, on_event, tmp_path)


@pytest.fixture
def make_watcher(make_launcher):
    watchers = []

    def make():
        watchers.append(Watcher(make_launcher))
        return watchers[-1]

    yield make
    for watcher in watchers:
        watcher.launcher.close(grace_seconds=0.0)


@pytest.fixture
def watcher(make_watcher):
    return make_watcher()


@pytest.fixture
def spec():
    """Make the spec of a worker that runs some Python; a fifo says when it has come so far."""

    def make(body, index=0, up=None):
        if up is not None:
            body = body.replace(FOREVER, f"open({str(up)!r}, 'w').close(); {FOREVER}")
        command = (sys.executable, "-c", body)
        return ProcessSpec(Role.WORKER, index, command)

    return make


@pytest.fixture
def up(tmp_path):
    path = tmp_path / "up"
    os.mkfifo(path)
    return path


def wait_for(fifo):
    with fifo.open() as file:
        assert file.read() == ""


EXITS = [
    ("pass", ExitReason.FINISHED, 0),
    ("raise SystemExit(3)", ExitReason.FAILED, 3),
    ("import os; os.kill(os.getpid(), 9)", ExitReason.KILLED, -9),
    ("raise SystemExit(143)", ExitReason.PREEMPTED, 143),
    ("import os; os.kill(os.getpid(), 15)", ExitReason.PREEMPTED, -15),
]


def test_an_exit_is_reported_with_its_reason(watcher, spec):
    for body, reason, code in EXITS:
        handle = watcher.launcher.start(spec(body))
        exited = watcher.next_exit()
        assert (exited.handle, exited.reason, exited.code) == (handle, reason, code), body


def test_a_process_is_said_to_run_before_it_is_said_to_have_ended(watcher, spec):
    handle = watcher.launcher.start(spec("pass"))
    watcher.next_exit()
    said = [event for event in watcher.events if not isinstance(event, PendingProcess)]
    assert [type(event) for event in said] == [Started, Exited]
    assert {event.handle for event in said} == {handle}


def test_an_adopted_process_is_said_to_run(make_watcher, spec, up):
    first, second = make_watcher(), make_watcher()
    handle = first.launcher.start(spec(FOREVER, up=up))
    wait_for(up)
    second.launcher.adopt(handle)
    second.launcher.stop(handle, grace_seconds=LONG)
    second.next_exit()
    assert second.events[0] == Started(handle)


def test_output_is_added_to_the_log(watcher, spec, tmp_path):
    first = spec("import sys; print('to stdout'); print('to stderr', file=sys.stderr)")
    second = spec("print('again')")
    for each in (first, second):
        watcher.launcher.start(each)
        watcher.next_exit()
    log = log_path(tmp_path, Role.WORKER, 0).read_text()
    assert sorted(log.splitlines()) == ["again", "to stderr", "to stdout"]
    assert log.endswith("again\n")


def test_a_failure_is_reported_with_its_last_words(watcher, spec):
    watcher.launcher.start(spec("print('begins'); print('no loss in x.py'); raise SystemExit(3)"))
    assert watcher.next_exit().last_words == "no loss in x.py"
    watcher.launcher.start(spec("print('bye')"))
    assert watcher.next_exit().last_words == ""


@on_this_machine
def test_a_program_that_is_not_there_is_a_launch_error(watcher, spec):
    missing = dataclasses.replace(spec("pass", index=4), command=("/no/such/program",))
    with pytest.raises(LaunchError, match=r"worker-4: cannot start /no/such/program: .*No such"):
        watcher.launcher.start(missing)


def test_stop_ends_a_process(watcher, spec, up):
    handle = watcher.launcher.start(spec(FOREVER, up=up))
    wait_for(up)
    watcher.launcher.stop(handle, grace_seconds=LONG)
    exited = watcher.next_exit()
    assert (exited.handle, exited.reason) == (handle, ExitReason.PREEMPTED)


def test_a_process_that_does_not_listen_is_killed_after_the_grace(watcher, spec, up):
    handle = watcher.launcher.start(spec(DEAF, up=up))
    wait_for(up)
    watcher.launcher.stop(handle, grace_seconds=0.05)
    assert watcher.next_exit().code == -9


def test_a_second_stop_can_shorten_the_grace(watcher, spec, up):
    handle = watcher.launcher.start(spec(DEAF, up=up))
    wait_for(up)
    watcher.launcher.stop(handle, grace_seconds=LONG)
    watcher.launcher.stop(handle, grace_seconds=0.0)
    assert watcher.next_exit().code == -9


def test_stopping_a_process_that_is_gone_does_nothing(watcher, spec):
    handle = watcher.launcher.start(spec("pass"))
    watcher.next_exit()
    watcher.launcher.stop(handle, grace_seconds=0.0)
    watcher.launcher.close(grace_seconds=0.0)
    assert watcher.exits.empty()


def test_close_stops_and_reports_every_process_once(watcher, spec):
    handles = [watcher.launcher.start(spec(FOREVER, index)) for index in range(3)]
    watcher.launcher.close(grace_seconds=LONG)
    exits = [watcher.exits.get_nowait() for _ in handles]
    assert {exited.handle for exited in exits} == set(handles)
    assert watcher.exits.empty()
    watcher.launcher.close(grace_seconds=LONG)


def test_nothing_starts_after_close(watcher, spec):
    watcher.launcher.close(grace_seconds=0.0)
    with pytest.raises(LaunchError, match="the job is ending"):
        watcher.launcher.start(spec("pass"))


def test_who_hears_of_an_end_may_start_the_next_process(make_watcher, spec):
    watcher = make_watcher()
    restarted = queue.Queue()

    def relaunch(event):
        if isinstance(event, Exited) and event.code == 3:
            restarted.put(watcher.launcher.start(spec("pass")))
        watcher.take(event)

    watcher.launcher._on_event = relaunch
    watcher.launcher.start(spec("raise SystemExit(3)"))
    assert watcher.next_exit().code == 3
    assert watcher.next_exit().handle == restarted.get_nowait()


def test_an_error_in_on_event_does_not_end_the_watch(make_watcher, spec, caplog):
    watcher = make_watcher()

    def fail(event):
        watcher.take(event)
        raise KeyError("a defect of the master")

    watcher.launcher._on_event = fail
    watcher.launcher.start(spec("pass"))
    watcher.next_exit()
    watcher.launcher.start(spec("pass"))
    watcher.next_exit()
    watcher.launcher.close(grace_seconds=0.0)
    assert "a defect of the master" in caplog.text


@on_this_machine
def test_an_adopted_process_is_watched_and_can_be_stopped(make_watcher, spec, up):
    first, second = make_watcher(), make_watcher()
    handle = first.launcher.start(spec(FOREVER, up=up))
    wait_for(up)
    second.launcher.adopt(handle)
    second.launcher.stop(handle, grace_seconds=LONG)
    exited = second.next_exit()
    assert (exited.handle, exited.reason, exited.code) == (handle, ExitReason.UNKNOWN, None)


def test_adopting_a_process_that_is_gone_reports_its_end(make_watcher, spec):
    first, second = make_watcher(), make_watcher()
    handle = first.launcher.start(spec("pass"))
    first.next_exit()
    second.launcher.adopt(handle)
    exited = second.next_exit()
    assert (exited.handle, exited.reason) == (handle, ExitReason.UNKNOWN)


def test_a_handle_of_another_launcher_is_refused(watcher, spec):
    handle = watcher.launcher.start(spec("pass"))
    foreign = dataclasses.replace(handle, ref="pod/worker-0")
    with pytest.raises(LaunchError, match="of another launcher"):
        watcher.launcher.adopt(foreign)
