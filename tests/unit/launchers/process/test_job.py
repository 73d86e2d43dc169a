"""A job that a user interrupts while it begins leaves no process and no open file."""

import os
import shutil
import signal
import subprocess

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.launchers import signals
from elasticdl.launchers.process.folder import held, prepare
from elasticdl.launchers.process.job import LocalSubmitter


class PlayedRoot:
    """A root that never says that its job has begun; the user interrupts."""

    def __init__(self, is_interrupted_while_it_starts):
        self.calls = []
        self.stdout = self
        if is_interrupted_while_it_starts:
            os.kill(os.getpid(), signal.SIGINT)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def read(self):
        raise KeyboardInterrupt

    def terminate(self):
        self.calls.append("terminate")

    def wait(self):
        self.calls.append("wait")


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("while_it_starts", [True, False])
def test_an_interrupted_begin_leaves_nothing(tmp_path, monkeypatch, is_tied, while_it_starts):
    before, ends, closed, roots = signal.getsignal(signal.SIGINT), [], [], []

    def start(*words, **others):
        roots.append(PlayedRoot(while_it_starts))
        return roots[-1]

    pipe, close = os.pipe, os.close
    monkeypatch.setattr(os, "pipe", lambda: ends.extend(pipe()) or ends)
    monkeypatch.setattr(os, "close", lambda end: closed.append(end) or close(end))
    monkeypatch.setattr(subprocess, "Popen", start)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words = {"model_def": "a.forward", "training_data": "/d", "job_dir": str(tmp_path / "job")}
    try:
        with pytest.raises(KeyboardInterrupt):
            LocalSubmitter().submit(build_config("train", words), is_tied)
    finally:
        signal.signal(signal.SIGINT, before)
    assert roots[0].calls == ["terminate", "wait"]
    assert len(ends) == 2 * is_tied
    assert set(ends) <= set(closed)


def test_a_copy_of_a_running_jobs_folder_is_not_that_job(tmp_path):
    words = {"model_def": "a.forward", "training_data": "/d", "job_dir": str(tmp_path / "job")}
    job_dir = prepare(build_config("train", words))
    with held(job_dir):
        shutil.copytree(job_dir, tmp_path / "copy")
        assert LocalSubmitter().find(str(tmp_path / "copy")).end(0.0).status == "stopped"
        job_dir = job_dir.rename(tmp_path / "moved")
        assert LocalSubmitter().find(str(job_dir)).end(0.0) is None


def test_a_deferred_signal_comes_at_the_end_of_the_block():
    before, done = signal.getsignal(signal.SIGINT), []
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def work():
        with signals.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("the block")

    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["the block"]
