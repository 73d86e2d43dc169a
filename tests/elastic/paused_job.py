"""A counting job that stops at a chosen minibatch, and goes on when told to."""

import json
import os
import subprocess
import sys
from pathlib import Path

from elasticdl._core import RecordWriter

COUNTING = Path(__file__).resolve().parents[2] / "model_zoo" / "counting" / "model.py"

# At the pause, feed opens one fifo to say that it is there, and another to be told to go on. What
# was fed before is trained meanwhile.
PAUSE = """

_feed_at_once, _modes = feed, []


def feed(records, mode, metadata):
    _modes.append(mode)
    if mode == Mode.{mode} and _modes.count(mode) == {call}:
        for fifo, flag in (("paused", "w"), ("go", "r")):
            with open(__file__.replace("model.py", fifo), flag) as file:
                file.read() if flag == "r" else file.write("x")
    return _feed_at_once(records, mode, metadata)
"""


class PausedJob:
    """`elasticdl train` of one worker and two ps replicas, over records that are ids."""

    def __init__(self, folder, ids, mode, call, **flags):
        """Pause when feed is called for the `call`-th time in a mode; all files go to `folder`."""
        self.folder = folder
        self.zoo = folder / "zoo"
        self.zoo.mkdir()
        model = COUNTING.read_text() + PAUSE.format(mode=mode, call=call)
        (self.zoo / "model.py").write_text(model)
        os.mkfifo(self.zoo / "paused")
        os.mkfifo(self.zoo / "go")
        self.data = folder / "data.recordio"
        with RecordWriter(str(self.data)) as writer:
            writer.write_many(str(id).encode() for id in ids)
        self.job_dir = folder / "job"
        self.export = folder / "export"
        self.flags = {
            "model_zoo": self.zoo,
            "model_def": "model.forward",
            "training_data": self.data,
            "distribution_strategy": "ParameterServerStrategy",
            "num_workers": 1,
            "num_ps_pods": 2,
            "minibatch_size": 16,
            "output": self.export,
            "job_dir": self.job_dir,
            "summary": folder / "summary.json",
            **flags,
        }

    def __enter__(self):
        words = [f"--{name}={value}" for name, value in self.flags.items()]
        with (self.folder / "train.log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "elasticdl.cli.main", "train", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()

    def wait_for_pause(self):
        """Return when feed has come to the pause."""
        (self.zoo / "paused").read_text()

    def go_on(self):
        """Let the job go on to its end; return its summary."""
        (self.zoo / "go").write_text("x")
        assert self.process.wait() == 0, self.log()
        return json.loads((self.folder / "summary.json").read_text())

    def is_running(self):
        """Return whether the job has not ended."""
        return self.process.poll() is None

    def log(self):
        """Return what the job has printed."""
        return (self.folder / "train.log").read_text()
