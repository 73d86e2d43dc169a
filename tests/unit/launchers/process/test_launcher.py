"""What the launcher of this machine does beyond the contract."""

import json
import os
import queue
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle, ProcessSpec
from elasticdl.launchers.process import launcher as launcher_module
from elasticdl.launchers.process.children import spawn
from elasticdl.launchers.process.exits import _reason
from elasticdl.launchers.process.launcher import ProcessLauncher
from elasticdl.launchers.process.logs import last_words, log_path
from elasticdl.launchers.process.out_of_memory import OutOfMemoryKills
from elasticdl.launchers.process.pids import ref_of
from elasticdl.launchers.process.temporary import TemporaryFolders
from elasticdl.runtime.proc import start_time
from elasticdl.runtime.process import LIFELINE_VARIABLE, scratch_folder

SECONDS = 30.0


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Have the processes of these tests leave nothing where others look."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def exits():
    return queue.Queue()


@pytest.fixture
def launcher(exits, tmp_path):
    launcher = ProcessLauncher(
        lambda event: isinstance(event, Exited) and exits.put(event), tmp_path
    )
    yield launcher
    launcher.close(grace_seconds=0.0)


def worker(body):
    return ProcessSpec(Role.WORKER, 0, (sys.executable, "-c", body))


def test_what_a_process_leaves_in_its_group_ends_with_it(tmp_path, launcher, exits):
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    grandchild = "import threading; threading.Event().wait()"
    body = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {grandchild!r}], pass_fds=({write_end},))\n"
    )
    spec = worker(body)
    launcher._lifeline = write_end  # any descriptor that is passed on shows who lives
    launcher.start(spec)
    os.close(write_end)
    assert exits.get(timeout=SECONDS).reason is ExitReason.FINISHED
    readable, _, _ = select.select([read_end], [], [], SECONDS)
    assert readable
    assert os.read(read_end, 1) == b""  # nobody holds the other end: the grandchild is gone
    os.close(read_end)


@pytest.mark.parametrize(("role", "stays"), [(Role.WORKER, False), (Role.PS, True)])
def test_files_on_their_way_go_with_a_killed_worker(tmp_path, launcher, exits, role, stays):
    # A successor of a ps replica may have files there already.
    folder = scratch_folder(tmp_path, role, 0)
    body = (
        "import os, pathlib, signal\n"
        f"folder = pathlib.Path({str(folder)!r}) / 'elasticdl-give-1'\n"
        "folder.mkdir(parents=True)\n"
        "(folder / 'vectors').touch()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    launcher.start(ProcessSpec(role, 0, (sys.executable, "-c", body)))
    assert exits.get(timeout=SECONDS).reason is ExitReason.KILLED
    assert folder.exists() == stays


@pytest.mark.parametrize("role", [Role.WORKER, Role.PS])
def test_what_a_killed_process_has_left_of_temporary_files_goes(tmp_path, launcher, exits, role):
    body = "import os, signal, tempfile; print(os.listdir(tempfile.gettempdir()));"
    body += "tempfile.mkstemp(); os.kill(os.getpid(), signal.SIGKILL)"
    for _ in range(2):
        launcher.start(ProcessSpec(role, 0, (sys.executable, "-uc", body)))
        exits.get(timeout=SECONDS)
    assert log_path(tmp_path, role, 0).read_text() == "[]\n[]\n"
    temporary = TemporaryFolders(tmp_path)
    temporary.remove_all()
    assert not temporary.root.exists()


@pytest.mark.parametrize(
    ("named", "is_shared", "name", "root"),
    [
        ("", False, "job", "/job/tmp"),
        ("", True, "job", "/tmp/elasticdl-"),
        ("", False, "j" * 60, "/tmp/elasticdl-"),
        ("/large", False, "job", "/large/elasticdl-"),
    ],
)
def test_temporary_files_are_in_the_jobs_folder_unless_sockets_could_not_be_there(
    monkeypatch, named, is_shared, name, root
):
    monkeypatch.setenv("TMPDIR", named)
    found = str(TemporaryFolders(Path("/", name), is_shared).root)
    assert found.startswith(root)
    monkeypatch.setenv("ELASTICDL_TMPDIR", named)  # in a process with a folder of its own
    monkeypatch.setenv("TMPDIR", "/own")
    assert str(TemporaryFolders(Path("/", name), is_shared).root) == found


def test_a_process_does_not_get_the_terminals_signals(tmp_path):
    child = spawn((sys.executable, "-c", "pass"), tmp_path / "log", lifeline=None)
    assert os.getsid(child.pid) == child.pid
    child.wait()


def test_the_lifeline_is_passed_on_under_its_own_number(tmp_path):
    read_end, write_end = os.pipe()
    body = f"import os; os.fstat(int(os.environ[{LIFELINE_VARIABLE!r}])); print('held')"
    child = spawn((sys.executable, "-c", body), tmp_path / "log", lifeline=read_end)
    assert child.wait() == 0
    assert (tmp_path / "log").read_text() == "held\n"
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize("differs", ["start_time", "boot"])
def test_a_pid_that_belongs_to_another_process_now_is_not_adopted(launcher, exits, differs):
    body = "import threading; threading.Event().wait()"
    with subprocess.Popen([sys.executable, "-c", body]) as stranger:
        try:
            ref = json.loads(ref_of(stranger.pid))
            ref[differs] = {"start_time": ref["start_time"] - 1, "boot": "before"}[differs]
            handle = ProcessHandle(Role.WORKER, 0, json.dumps(ref))
            launcher.adopt(handle)
            assert exits.get(timeout=SECONDS).reason is ExitReason.UNKNOWN
            launcher.stop(handle, grace_seconds=0.0)
            launcher.close(grace_seconds=0.0)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_start_time_is_read_past_any_command_name(tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            assert start_time(child.pid) >= start_time(os.getpid())
            child.communicate(b"\n")
        finally:
            child.kill()
    assert start_time(child.pid) is None


def test_a_process_that_sigkill_does_not_end_is_left_and_named(
    tmp_path, launcher, monkeypatch, caplog
):
    kill = launcher_module._kill
    monkeypatch.setattr(launcher_module, "_KILLED_SECONDS", 0.05)
    monkeypatch.setattr(launcher_module, "_kill", lambda watched: None)
    monkeypatch.setattr(launcher_module, "_ask_to_end", lambda watched, grace_seconds: None)
    handle = launcher.start(worker("import threading; threading.Event().wait()"))
    launcher.close(grace_seconds=0.0)
    (watched,) = launcher._watched.values()
    assert f"not ended by SIGKILL: worker-0 (pid {watched.pid})" in caplog.text
    kill(watched)
    launcher.close(grace_seconds=SECONDS)
    assert handle.ref not in launcher._watched


def vmstat(tmp_path, kills):
    path = tmp_path / "vmstat"
    path.write_text(f"nr_free_pages 7\noom_kill {kills}\noom_kill_other 9\n")
    return path


def test_a_kill_for_memory_explains_one_exit(tmp_path):
    ooms = OutOfMemoryKills(vmstat(tmp_path, 2))
    assert _reason(-signal.SIGKILL, False, ooms) is ExitReason.KILLED
    vmstat(tmp_path, 3)
    assert _reason(-signal.SIGKILL, True, ooms) is ExitReason.KILLED  # we killed it
    assert _reason(-signal.SIGSEGV, False, ooms) is ExitReason.KILLED
    assert _reason(-signal.SIGKILL, False, ooms) is ExitReason.OUT_OF_MEMORY
    assert _reason(-signal.SIGKILL, False, ooms) is ExitReason.KILLED


def test_a_machine_that_does_not_count_kills_has_none(tmp_path):
    assert not OutOfMemoryKills(tmp_path / "missing").take_one()


def test_a_launch_error_leaves_nothing_to_watch(tmp_path, launcher, exits):
    log_path(tmp_path, Role.WORKER, 0).mkdir(parents=True)
    with pytest.raises(LaunchError, match="Is a directory"):
        launcher.start(worker("pass"))
    launcher.close(grace_seconds=0.0)
    assert exits.empty()


def test_last_words_are_the_last_error(tmp_path):
    log = tmp_path / "worker-0.log"
    assert last_words(log) == ""
    log.write_text("hello\n\n")
    assert last_words(log) == "hello"
    log.write_text(
        "2026-01-31 12:00:00.000 worker-0 INFO hello\n"
        "2026-01-31 12:00:01.000 worker-0 ERROR ModelError: x.py has no loss\n"
        "Exception ignored in thread\n"
    )
    assert last_words(log) == "ModelError: x.py has no loss"


def test_whoever_leaves_lets_workers_end_before_the_ps_replicas_that_they_push_to(
    tmp_path, launcher, exits
):
    def ends(role):
        started = tmp_path / role.value
        body = (
            "import pathlib, signal, sys, threading\n"
            f"seconds = {0.5 if role is Role.WORKER else 0.0}\n"
            "def end(*_):\n"
            "    threading.Event().wait(seconds)\n"
            "    sys.exit(130)\n"
            "signal.signal(signal.SIGTERM, end)\n"
            f"pathlib.Path({str(started)!r}).touch()\n"
            "while True: signal.pause()\n"
        )
        launcher.start(ProcessSpec(role, 0, (sys.executable, "-c", body)))
        return started

    started = [ends(Role.PS), ends(Role.WORKER)]
    while not all(file.exists() for file in started):
        select.select([], [], [], 0.02)
    launcher.leave(SECONDS)
    assert [exits.get(timeout=SECONDS).handle.role for _ in started] == [Role.WORKER, Role.PS]
