"""How a job ends that this process computes, and what is written of one that never began."""

import json
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.cli.run import _run, ends_in_order, run
from elasticdl.cli.stay import Stay
from elasticdl.errors import ConfigError, ElasticdlError
from elasticdl.launchers.process.folder import prepare


def after(number):
    """Send a signal to a job; return what another one would do."""
    with ends_in_order():
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            return signal.getsignal(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_job_in_this_process_as_ctrl_c_does_and_at_once_the_second_time(number):
    before = signal.signal(number, signal.SIG_DFL)  # nohup may run the tests
    assert after(number) is signal.SIG_DFL
    assert signal.signal(number, before) is signal.SIG_DFL


def test_a_job_in_this_process_goes_on_when_its_terminal_is_closed_if_nohup_began_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert after(signal.SIGHUP) is None
    assert signal.signal(signal.SIGHUP, before) is signal.SIG_IGN


@pytest.mark.parametrize("stay", [Stay.WAIT, Stay.DETACH])
def test_a_job_that_is_its_command_cannot_go_on_without_it(stay):
    config = build_config("train", {"model_def": "nowhere.forward", "training_data": "d.csv"})
    with pytest.raises(ConfigError, match=f"--{stay}: a job with --distribution_strategy=Local is"):
        run(config, stay)


def test_a_job_that_is_its_command_says_that_it_does_not_go_on_where_another_was(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("elasticdl.cli.local.run", lambda config, display: None)
    words = {"model_def": "m.forward", "training_data": "d.csv", "job_dir": str(tmp_path / "job")}
    notes = []
    for _ in range(2):
        display = SimpleNamespace(note=notes.append)
        _run(build_config("train", words), Stay.TIED, display, {})
    (note,) = notes
    assert note.startswith(f"--job_dir={tmp_path / 'job'}: a job with ")


@pytest.mark.parametrize(("is_there", "said"), [(True, "finished"), (False, "failed")])
def test_a_command_that_is_refused_leaves_the_summary_of_the_job_in_its_folder(
    is_there, said, tmp_path
):
    path = tmp_path / "summary.json"
    path.write_text('{"status": "finished"}')
    words = {"model_def": "nowhere.forward", "training_data": "d.csv", "job_dir": tmp_path / "job"}
    config = build_config("train", {n: str(v) for n, v in {**words, "summary": path}.items()})
    if is_there:
        prepare(config)
    with pytest.raises(ElasticdlError):
        run(config, look="quiet")
    assert json.loads(path.read_text())["status"] == said


def test_a_job_whose_terminal_is_closed_was_stopped_by_nobodys_fault(tmp_path):
    body = (
        "import os, pty, signal\n"
        "from elasticdl.cli.run import _stopped_by\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "ours, theirs = pty.openpty()\n"
        "os.setsid()\n"
        "os.dup2(os.open(os.ttyname(theirs), os.O_RDWR), 1)\n"
        "before = _stopped_by(OSError())\n"
        "os.close(ours)\n"
        f"open({str(tmp_path / 'said')!r}, 'w').write(before + ';' + _stopped_by(OSError()))\n"
    )
    subprocess.run([sys.executable, "-c", body], check=True, timeout=200)
    assert (tmp_path / "said").read_text() == ";the terminal was closed"
