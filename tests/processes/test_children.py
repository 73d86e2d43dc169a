"""Signals as things to read, and the end of all children; in a process of its own."""

import os
import signal
import subprocess
import sys

PRELUDE = """
import os, signal, subprocess, sys, threading, time
from elasticdl.launchers.process import children
from elasticdl.launchers.signals import Signals
FOREVER = [sys.executable, "-c", "import threading; threading.Event().wait()"]
"""


def run(body):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + body], capture_output=True, text=True, timeout=250
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_signals_are_read_in_the_order_they_came():
    assert run(
        """
with Signals() as signals:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    print([number.name for number in signals.wait(60)])
"""
    ) == ["['SIGTERM', 'SIGINT']"]


def test_another_thread_ends_the_wait():
    assert run(
        """
with Signals() as signals:
    threading.Thread(target=signals.wake).start()
    print(signals.wait(None))
signals.wake()
"""
    ) == ["[]"]


def test_the_handlers_from_before_are_back_afterwards():
    assert run(
        """
with Signals():
    pass
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.set_wakeup_fd(-1))
"""
    ) == ["True -1"]


def test_a_signal_that_nohup_has_ignored_is_ignored():
    assert run(
        """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
with Signals() as signals:
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
    print([number.name for number in signals.wait(60)])
print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
"""
    ) == ["['SIGTERM']", "True"]


def test_the_end_of_a_child_wakes():
    assert run(
        """
with Signals() as signals:
    child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    while signal.SIGCHLD not in signals.wait(60):
        pass
    print(children.reap() == ({child.pid: 3}, False))
    child.returncode = 3
"""
    ) == ["True"]


def test_an_orphan_becomes_a_child_and_is_reaped():
    assert run(
        """
children.become_subreaper()
with Signals() as signals:
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.Popen({FOREVER!r}).returncode = 0"]
    )
    ended, any_left = {}, True
    while parent.pid not in ended:
        signals.wait(60)
        ended, any_left = children.reap()
    parent.returncode = 0
    (orphan,) = children.children()
    print(any_left)
    os.kill(orphan, signal.SIGKILL)
    while any_left:
        signals.wait(60)
        ended, any_left = children.reap()
    print(ended == {orphan: -9})
"""
    ) == ["True", "True"]


def test_children_that_do_not_end_are_killed_with_all_that_they_started():
    assert run(
        """
children.become_subreaper()
script = f"import subprocess; subprocess.Popen({FOREVER!r}).wait()"
with Signals() as signals:
    child = subprocess.Popen([sys.executable, "-c", script])
    print(children.end_all(signals.wait, patience_seconds=0.0, give_up_seconds=60.0))
    print(list(children.children()))
    child.returncode = -9
"""
    ) == ["True", "[]"]


def test_without_children_there_is_nothing_to_wait_for():
    assert run("print(children.end_all(time.sleep, 60.0, 60.0))") == ["True"]


def test_ctrl_c_in_a_job_of_one_process_is_no_traceback(tmp_path):
    (tmp_path / "model.py").write_text("forward = feed = optimizer = None\n")
    (tmp_path / "data.csv").write_text("1\n")
    script = """
import sys
from elasticdl.cli import local, main
def run(config, display):
    print("up", flush=True)
    import threading
    threading.Event().wait()
local.run = run
main.main(sys.argv[1:])
"""
    with subprocess.Popen(
        [
            *(sys.executable, "-c", script, "train", f"--model_zoo={tmp_path}"),
            *("--model_def=model.forward", f"--training_data={tmp_path / 'data.csv'}"),
            f"--summary={tmp_path / 'summary.json'}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "100"},
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "up\n"
            child.send_signal(signal.SIGINT)
            _, err = child.communicate(timeout=100)
        finally:
            child.kill()
    assert (child.returncode, err.strip()) == (130, "error: interrupted")
    assert '"status": "stopped"' in (tmp_path / "summary.json").read_text()
