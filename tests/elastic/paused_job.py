"""A counting job that stops at a chosen minibatch, and goes on when told to."""

import os
from pathlib import Path

from elasticdl._core import RecordWriter
from tests.elastic.running_job import RunningJob, elasticdl

COUNTING = Path(__file__).resolve().parents[2] / "model_zoo" / "counting" / "model.py"

# At the pause, feed opens one fifo to say that it is there, and another to be told to go on. What
# was fed before is trained meanwhile.
PAUSE = """

import threading

_feed_at_once, _modes = feed, []


def feed(records, mode, metadata):
    if threading.current_thread().name == "data check":  # the look before the first record
        return _feed_at_once(records, mode, metadata)
    _modes.append(mode)
    if mode == Mode.{mode} and _modes.count(mode) == {call}:
        for fifo, flag in (("paused", "w"), ("go", "r")):
            with open(__file__.replace("model.py", fifo), flag) as file:
                file.read() if flag == "r" else file.write("x")
    return _feed_at_once(records, mode, metadata)
"""


class PausedJob(RunningJob):
    """`elasticdl train` of one worker and two ps replicas, over records that are ids."""

    def __init__(self, folder, ids, mode, call, **flags):
        """Pause when feed is called for the `call`-th time in a mode; all files go to `folder`."""
        self.zoo = folder / "zoo"
        self.zoo.mkdir()
        model = COUNTING.read_text() + PAUSE.format(mode=mode, call=call)
        (self.zoo / "model.py").write_text(model)
        os.mkfifo(self.zoo / "paused")
        os.mkfifo(self.zoo / "go")
        data = folder / "data.recordio"
        with RecordWriter(str(data)) as writer:
            writer.write_many(str(id).encode() for id in ids)
        self.export = folder / "export"
        wanted = {
            "model_zoo": self.zoo,
            "model_def": "model.forward",
            "training_data": data,
            "distribution_strategy": "ParameterServerStrategy",
            "num_workers": 1,
            "num_ps_pods": 2,
            "minibatch_size": 16,
            "output": self.export,
            "job_dir": folder / "job",
            "summary": folder / "summary.json",
            **flags,
        }
        super().__init__(folder, elasticdl("train", **wanted))

    def wait_for_pause(self):
        """Return when feed has come to the pause."""
        (self.zoo / "paused").read_text()

    def go_on(self):
        """Let the job go on to its end; return its summary."""
        (self.zoo / "go").write_text("x")
        return self.finish()
