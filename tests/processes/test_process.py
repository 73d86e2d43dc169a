"""What every process does first."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.config import ClusterSection, DataSection, JobConfig, ModelSection
from elasticdl.errors import ConfigError
from elasticdl.job import Role
from elasticdl.runtime import process
from elasticdl.runtime.addresses import Listening

CONFIG = JobConfig(
    command="train",
    model=ModelSection(model_def="counting.model.forward"),
    data=DataSection(training_data="data.rec"),
    cluster=ClusterSection(tls="off", insecure=True),
)


@pytest.fixture
def job_dir(tmp_path):
    CONFIG.write(tmp_path / process.CONFIG_FILE)
    process.write_token(tmp_path / process.TOKEN_FILE)
    return tmp_path


def _start_role(
    job_dir: Path, body: str, role=Role.WORKER, listening=None, **options
) -> subprocess.Popen:
    """Start a Python process that calls `process.start` and then runs `body`."""
    words = process.command(role, 3, job_dir, "127.0.0.1:1", listening)
    words = list(words[words.index("--config") :])
    script = (
        "import sys, threading\n"
        "from elasticdl.runtime import process\n"
        "from elasticdl.job import Role\n"
        "from elasticdl.errors import DataError\n"
        f"arguments = process.start(Role({str(role)!r}), {words})\n"
        f"{body}\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


@pytest.fixture
def run_role():
    """Return what starts a process of a role, which is gone when the test ends."""
    started = []

    def run_role(*given, **options):
        started.append(_start_role(*given, **options))
        return started[-1]

    yield run_role
    for child in started:
        child.kill()
        child.communicate()


def test_a_process_finds_its_settings_where_the_command_line_says(job_dir, run_role):
    child = run_role(job_dir, "print(arguments.config.command, arguments.index, arguments.master)")
    out, err = child.communicate()
    assert (out, err, child.returncode) == ("train 3 127.0.0.1:1\n", "", 0)


def test_the_master_needs_no_master(job_dir):
    words = process.command(Role.MASTER, 0, job_dir)
    assert "--master" not in words
    assert words[1:5] == ("-P", "-u", "-m", "elasticdl.master")


def test_roles_that_listen_are_told_where(job_dir):
    listening = Listening("0.0.0.0", "a.ps")
    words = process.command(Role.PS, 3, job_dir, "m:1", listening)
    assert words[-4:] == ("--bind_address", "0.0.0.0", "--advertise_address", "a.ps")
    # A worker listens too, for the other workers of its world.
    assert process.command(Role.WORKER, 0, job_dir, "m:1", listening)[-4:] == words[-4:]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_process_without_certificates_begins_only_where_that_is_accepted(job_dir, run_role, host):
    listening = Listening(host, "a.ps")
    cluster = ClusterSection()
    CONFIG.model_copy(update={"cluster": cluster}).write(job_dir / process.CONFIG_FILE)
    child = run_role(job_dir, "", Role.PS, listening)
    _, err = child.communicate()
    assert child.returncode == 1
    assert "ConfigError: --tls_dir: expected the folder with certificates" in err
    CONFIG.write(job_dir / process.CONFIG_FILE)
    child = run_role(job_dir, "print(arguments.listening.at(5))", Role.PS, listening)
    assert child.communicate() == ("a.ps:5\n", "")


def test_who_listens_everywhere_must_say_where_it_is_found(job_dir, run_role):
    child = run_role(job_dir, "", Role.PS, Listening("0.0.0.0"))
    _, err = child.communicate()
    assert "ConfigError: --bind_address=0.0.0.0" in err
    assert "give --advertise_address too" in err
    assert child.returncode == 1


def test_log_lines_name_the_process(job_dir, run_role):
    child = run_role(job_dir, "import logging; logging.info('read %d', 7)")
    _, err = child.communicate()
    assert err.endswith(" worker-3 INFO read 7\n")


def test_sigterm_runs_finally_blocks_and_ends(job_dir, run_role):
    body = (
        "try:\n    print('up', flush=True); threading.Event().wait()\n"
        "finally:\n    print('cleaned up')"
    )
    child = run_role(job_dir, body)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate()
    assert out == "cleaned up\n"
    assert child.returncode == process.STOPPED_EXIT_CODE
    assert "Traceback" not in err


def test_an_expected_error_is_one_line_and_a_defect_has_its_traceback(job_dir, run_role):
    expected = run_role(job_dir, "raise DataError('a.rec: torn at byte 7')")
    _, err = expected.communicate()
    assert err.endswith("worker-3 ERROR DataError: a.rec: torn at byte 7\n")
    assert err.count("\n") == 1
    assert expected.returncode == 1
    defect = run_role(job_dir, "raise KeyError('x')")
    _, err = defect.communicate()
    assert "Traceback" in err
    assert defect.returncode == 1


def test_a_process_ends_when_the_lifeline_is_cut(job_dir, run_role):
    read_end, write_end = os.pipe()
    child = run_role(
        job_dir,
        "print('up', flush=True); threading.Event().wait()",
        pass_fds=(read_end,),
        env=os.environ | {process.LIFELINE_VARIABLE: str(read_end)},
    )
    os.close(read_end)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    os.close(write_end)
    _, err = child.communicate()
    assert child.returncode == -signal.SIGKILL
    assert "the elasticdl command is gone" in err


def test_a_lifeline_that_is_not_open_is_an_error(monkeypatch):
    monkeypatch.setenv(process.LIFELINE_VARIABLE, "999")
    with pytest.raises(ConfigError, match="ELASTICDL_LIFELINE_FD=999: expected an open file"):
        process.inherited_lifeline()
    monkeypatch.setenv(process.LIFELINE_VARIABLE, "x")
    with pytest.raises(ConfigError, match="expected an open file"):
        process.inherited_lifeline()


def test_a_token_is_secret_and_read_back(tmp_path):
    token = process.write_token(tmp_path / "token")
    assert len(token) == 32
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert process.read_token(tmp_path / "token") == token


def test_a_token_is_never_written_over(tmp_path):
    process.write_token(tmp_path / "token")
    with pytest.raises(FileExistsError):
        process.write_token(tmp_path / "token")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("zz", "expected hexadecimal"), ("00ff", "expected 32 bytes, found 2")],
)
def test_a_foreign_token_is_refused(tmp_path, content, complaint):
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(content)
    with pytest.raises(ConfigError, match=complaint):
        process.read_token(tmp_path / "token")


def test_a_token_that_others_can_read_is_refused(tmp_path):
    process.write_token(tmp_path / "token")
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(ConfigError, match="expected mode 0600, found 0644"):
        process.read_token(tmp_path / "token")


def test_missing_files_name_their_flag(job_dir):
    with pytest.raises(ConfigError, match=r"--token_file=.*No such file"):
        process.read_token(job_dir / "other")


def test_processes_are_named_by_role_and_index():
    assert process.process_name(Role.MASTER, 0) == "master"
    assert process.process_name(Role.PS, 1) == "ps-1"


def test_process_ends_now_though_a_thread_of_an_executor_waits_for_ever():
    body = """
import threading
from concurrent.futures import ThreadPoolExecutor
from elasticdl.runtime.ending import end_now
print("said")
ThreadPoolExecutor(1).submit(threading.Event().wait)
end_now(3)
"""
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (3, "said\n")


@pytest.mark.parametrize(
    ("thread", "printed"),
    [("ends_late", "done\nflushed\ntorn down\n"), ("goes_on", "flushed\n")],
)
def test_python_ends_no_thread_of_ours_in_its_midst(thread, printed):
    # Within PyTorch's C++ code this would abort the process.
    body = """
import atexit, sys, threading
from elasticdl.runtime import ending
begun = threading.Event()
class Last:
    def __del__(self):
        print("torn down")
last = Last()
def ends_late():
    begun.set()
    threading.Event().wait(0.05)
    print("done")
def goes_on():
    begun.set()
    while True:
        threading.Event().wait(0.01)
def main():
    atexit.register(print, "flushed")
    ending.DaemonThread(globals()[sys.argv[1]], "beside").start()
    begun.wait()
    raise SystemExit(3)
ending.run(main)
"""
    words = [sys.executable, "-c", body, thread]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (3, printed, "")
