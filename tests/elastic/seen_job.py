"""A counting job to be looked at: paced, and stalled once where a test wants it."""

from pathlib import Path

from elasticdl._core import RecordWriter
from tests.elastic.running_job import RunningJob, elasticdl

COUNTING = Path(__file__).resolve().parents[2] / "model_zoo" / "counting" / "model.py"

# Each minibatch takes some time to compute, so that a job lasts without keeping a core busy, until
# there is a file `hurry`. Once, at a call of one stage, the stage stands still.
PACED = """

import os
import sys
import threading
import time

_is_straggler = " --index {straggler} " in " ".join(sys.argv)
_feed_at_once, _gradients_at_once, _calls = feed, _gradients, {{}}


def _stall(stage):
    number = _calls[stage] = _calls.get(stage, 0) + 1
    if stage == {stage!r} and {call} in (number, "n"):
        time.sleep({seconds})


def feed(records, mode, metadata):
    if threading.current_thread().name != "data check":  # the look before the first record
        _stall("feed")
    return _feed_at_once(records, mode, metadata)


def _gradients(dense, rows, features, labels):
    _stall("compute")
    if not os.path.exists(__file__.replace("model.py", "hurry")):
        time.sleep({pace} * (8 if _is_straggler else 1))
    return _gradients_at_once(dense, rows, features, labels)


_stores = sys.modules.get("elasticdl.worker.stores")
if _stores is not None:
    _pull_at_once = _stores.StoreExchange.pull

    def _pull(self, ids, step=None):
        _stall("pull")
        return _pull_at_once(self, ids, step)

    _stores.StoreExchange.pull = _pull
"""


class SeenJob(RunningJob):
    """`elasticdl train` over records that are ids."""

    def __init__(
        self, folder, num_records, pace=0.004, stage="", call=0, seconds=0.0, straggler=-1, **flags
    ):
        """Prepare a job; `stage` stalls for some seconds at its `call`-th call ("n": at each).

        The worker whose number is `straggler` takes eight times as long to compute.
        """
        zoo = folder / "zoo"
        zoo.mkdir()
        words = {"stage": stage, "call": repr(call), "seconds": seconds, "pace": pace}
        words["straggler"] = straggler
        (zoo / "model.py").write_text(COUNTING.read_text() + PACED.format(**words))
        data = folder / "data.recordio"
        with RecordWriter(str(data)) as writer:
            writer.write_many(str(id % 1000).encode() for id in range(num_records))
        self.flags = {
            "model_zoo": zoo,
            "model_def": "model.forward",
            "training_data": data,
            "distribution_strategy": "ParameterServerStrategy",
            "num_workers": 1,
            "num_ps_pods": 2,
            "minibatch_size": 16,
            "heartbeat_seconds": 0.2,
            "job_dir": folder / "job",
            **flags,
        }
        super().__init__(folder, elasticdl("train", **self.flags))

    def hurry(self):
        """Let the job go to its end as fast as it can."""
        (self.folder / "zoo" / "hurry").touch()
