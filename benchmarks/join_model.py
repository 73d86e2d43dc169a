"""One large vector on NumPy with Adam, for `allreduce_join.py`; each worker notes its updates.

JOIN_NUMBERS: of the vector. JOIN_AT_ONCE: give joiners all before the first round, as if the model
were small. JOIN_NOTES: a folder; `updates-PID` gets a line for each update of a worker that has the
parameters (the time, the version), `given-PID` one when it has been given them (the time).
`timeline-PID` has what the thread of the ring did, as lists of the fields of `join_path.Interval`.
"""

import json
import os
import resource
import threading
import time
from pathlib import Path

import numpy as np

from elasticdl import ArrayModel, ArrayOptimizer, Mode
from elasticdl.job import Seat
from elasticdl.worker import ring_member
from elasticdl.worker.collective import Group, transfer
from elasticdl.worker.replica import Replica
from elasticdl.worker.ring_member import RingMember
from elasticdl.worker.staging import Giver, StagedParameters
from elasticdl.worker.transfer import ParameterTransfer

NUM_NUMBERS = int(os.environ["JOIN_NUMBERS"])


def forward():
    """A vector that follows the labels."""
    return ArrayModel(
        tables=[],
        ids=lambda features: [],
        predict=lambda dense, rows, features: dense["vector"][features],
        gradients=_gradients,
        dense={"vector": np.zeros(NUM_NUMBERS, np.float32)},
    )


def optimizer(lr=0.001):
    """Adam: its slots are twice as large as the vector."""
    params = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": 0.0}
    return ArrayOptimizer(learning_rate=lr, kind="adam", params=params)


def feed(records, mode, metadata):
    """Each record is a number."""
    numbers = np.array([int(record) for record in records])
    return numbers if mode == Mode.PREDICTION else (numbers, numbers % 2)


def _gradients(dense, rows, features, labels):
    gradient = np.full(NUM_NUMBERS, 1e-3, np.float32)
    gradient[features] = dense["vector"][features] - labels
    return float(np.square(gradient[features]).mean()), [], {"vector": gradient}


class _Timeline:
    """What one thread did. Of calls inside each other the innermost has the time."""

    def __init__(self, file):
        self._file = file
        self._calls = []  # [what, meeting] of those that have begun
        self._lines = []
        self._since = self._now()
        self._meetings = self._world = 0

    @staticmethod
    def _now():
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        return time.time(), time.thread_time(), faults

    def _end_interval(self):
        now = self._now()
        if self._calls:
            begin, end = self._since[0], now[0]
            spent = [b - a for a, b in zip(self._since[1:], now[1:], strict=True)]
            self._lines.append(json.dumps([*self._calls[-1], begin, end, *spent]))
            self._calls[-1][1] = ""  # all have come by now
        self._since = now

    def call(self, what, meeting, function, *args, **kwargs):
        self._end_interval()
        self._calls.append([what, meeting])
        try:
            result = function(*args, **kwargs)
            if isinstance(result, Seat):  # now it is known which world has met
                self._calls[-1][1] = f"meet {result.world_id}"
            return result
        finally:
            self._end_interval()
            self._calls.pop()

    def watch(self, owner, name, what, all_come=False):
        """Note the calls of a function; `all_come`: it returns when all ranks have called it."""
        function = getattr(owner, name)

        def watched(*args, **kwargs):
            if threading.current_thread().name != "ring":
                return function(*args, **kwargs)
            if name == "form_ring":
                self._world, self._meetings = args[0].rendezvous_id, 0
            self._meetings += all_come
            meeting = f"{self._world} {self._meetings}" if all_come else ""
            return self.call(what, meeting, function, *args, **kwargs)

        setattr(owner, name, watched)

    def write(self):
        if self._lines:
            self._file.write("\n".join(self._lines) + "\n")
            self._lines = []


def _note(folder):
    updates = (folder / f"updates-{os.getpid()}").open("a", buffering=1)
    given = (folder / f"given-{os.getpid()}").open("a", buffering=1)
    timeline = _Timeline((folder / f"timeline-{os.getpid()}").open("a", buffering=1))
    for owner, name, what, all_come in (
        (RingMember, "_meet", "rendezvous", False),
        (ring_member, "form_ring", "forming the ring", True),
        (ParameterTransfer, "begin", "beginning of a world", False),
        (RingMember, "_next", "a gradient is computed", False),
        (Group, "exchange", "offers go around", True),
        (Group, "mean", "reduction of the gradient", True),
        (Group, "give", "what is given at once goes around", True),
        (Group, "give_piece", "reduction of a piece", True),
        (Replica, "count", "update", False),
        (Replica, "dump", "all is written", False),
        (Replica, "load", "all is loaded", False),
        (Replica, "begin_stage", "the joiner begins", False),
        (Replica, "end_stage", "the joiner has all", False),
        (Giver, "piece", "a piece is read", False),
        (StagedParameters, "take", "a piece is kept", False),
    ):
        timeline.watch(owner, name, what, all_come)
    count, load, end_stage = Replica.count, Replica.load, Replica.end_stage

    def count_and_note(replica, *args):
        count(replica, *args)
        if not replica.is_staging:
            updates.write(f"{time.time()} {replica.version}\n")
        timeline.write()

    def load_and_note(replica, data):
        load(replica, data)
        given.write(f"{time.time()}\n")

    def end_stage_and_note(replica):
        if has_ended := end_stage(replica):
            given.write(f"{time.time()}\n")
        return has_ended

    Replica.count, Replica.load = count_and_note, load_and_note
    Replica.end_stage = end_stage_and_note


if "JOIN_NOTES" in os.environ:
    _note(Path(os.environ["JOIN_NOTES"]))
    if os.environ["JOIN_AT_ONCE"] == "1":
        transfer.AT_ONCE_BYTES = 1 << 62
