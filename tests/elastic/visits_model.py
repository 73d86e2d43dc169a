"""A dense model that counts how often each record was trained, and faults at chosen places.

A record is its own number. A rule of its own moves a weight by the sign of its gradient, so each
update adds exactly 1 to the count of every record in it, whatever else is averaged with it. A slot
counts the same.
The state counts the updates.

`settings.json` beside this file lists faults, which come one after the other: each is claimed by
the first worker that has come to its place often enough since there is a file `due-N`. There is a
file `hurry` once the job may go as fast as it can. `hashes` collects a hash of weights, optimizer
slots and watermarks before chosen updates, when all ranks have made the last.

With `piece_bytes` workers that join are given the parameters beside training, in pieces of that
size. `stages` then has a file for each that has got them: from which position, to which, by whom.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

from elasticdl import ArrayModel, ArrayTable, Initializer, Mode
from elasticdl.optimizers import UpdateRule

HERE = Path(__file__).parent
SETTINGS = json.loads((HERE / "settings.json").read_text())
NUM_RECORDS, SECONDS = SETTINGS["num_records"], SETTINGS["seconds"]
PIECE_BYTES = SETTINGS["piece_bytes"]
HAS_ROWS = SETTINGS["has_rows"]  # then a row of each record counts too, on ps replicas


def forward():
    """A count of each record, in a dense variable and perhaps in rows; the number of updates."""
    rows = ArrayTable("rows", dim=1, initializer=Initializer("constant", {"value": 0.0}))
    return ArrayModel(
        tables=[rows] if HAS_ROWS else [],
        ids=lambda features: [features] if HAS_ROWS else [],
        predict=lambda dense, rows, features: dense["visits"][features],
        gradients=_gradients,
        dense={"visits": np.zeros(NUM_RECORDS, np.float32)},
        state={"updates": np.zeros(1, np.float32)},
    )


def optimizer(lr=1.0):
    """The sign of the gradient alone."""
    return UpdateRule(_update, {"updates": 0.0}, learning_rate=lr)


def _update(weight, gradient, slots, step, learning_rate):
    moves = np.sign(gradient)
    return weight - learning_rate * moves, {"updates": slots["updates"] + abs(moves)}


def feed(records, mode, metadata):
    """Parse the numbers of records."""
    numbers = np.array([int(record) for record in records], np.int64)
    return numbers if mode == Mode.PREDICTION else (numbers, np.zeros(len(numbers), np.float32))


def eval_metrics_fn():
    """How often a record was trained, on average."""
    return {"mean_visits": lambda labels, predictions: predictions}


def _gradients(dense, rows, features, labels):
    come_to("compute")
    if not (HERE / "hurry").exists():
        # The tempo of the job: it lasts until a test has done to it what it wants, with processes
        # that are slow to start.
        time.sleep(SECONDS)
    gradient = np.zeros(NUM_RECORDS, np.float32)
    np.subtract.at(gradient, features, 1.0 / len(features))
    of_rows = [np.full((len(features), 1), -1.0, np.float32)] if HAS_ROWS else []
    return 1.0, of_rows, {"visits": gradient}, {"updates": np.ones(1, np.float32)}


# --- faults --------------------------------------------------------------------------------------

_comings = Counter()
_lock = threading.Lock()


def come_to(place):
    """Do what is due at a place: nothing, as a rule."""
    with _lock:
        number = len(list(HERE.glob("claimed-*")))
        if number >= len(SETTINGS["faults"]) or SETTINGS["faults"][number][0] != place:
            return
        if not (HERE / f"due-{number}").exists():
            return
        _comings[number] += 1
        if _comings[number] < SETTINGS["faults"][number][1]:
            return
        try:
            os.close(os.open(HERE / f"claimed-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    if place == "abort after reduction":
        from elasticdl.errors import RingError

        raise RingError("a fault: this rank lost the ring, others did not")
    if place == "during reduction":
        threading.Timer(0.0002, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner, name, place):
    wrapped = getattr(owner, name)

    def call(*args, **kwargs):
        come_to(place)
        return wrapped(*args, **kwargs)

    setattr(owner, name, call)


def _after(owner, name, place):
    wrapped = getattr(owner, name)

    def call(*args, **kwargs):
        result = wrapped(*args, **kwargs)
        come_to(place)
        return result

    setattr(owner, name, call)


def _tensors(dump):
    """Return weights, slots, state and watermarks; the header before them is in no fixed order."""
    length = int.from_bytes(dump[:8], "little")
    files = json.loads(dump[8 : 8 + length])["files"]
    assert files[-1][0].endswith("-vectors.safetensors")
    rest = dump[8 + length + sum(size for _, size in files[:-1]) :]
    return rest[8 + int.from_bytes(rest[:8], "little") :]


def _hash(replica):
    position = replica.position
    if not replica.is_staging and position % SETTINGS["hash_every"] == 0:
        digest = hashlib.sha256(_tensors(replica.dump())).hexdigest()
        (HERE / "hashes" / f"{position}-{os.getpid()}").write_text(digest)


def _hash_before(owner, name):
    wrapped = getattr(owner, name)

    def hash_and_call(replica, *args):
        _hash(replica)
        return wrapped(replica, *args)

    setattr(owner, name, hash_and_call)


def _watch_stages():
    """Have all models given in pieces; note who was given one, and while which steps."""
    from elasticdl.packages.all_reduce import transfer as worker_transfer
    from elasticdl.packages.all_reduce.collective import transfer
    from elasticdl.packages.all_reduce.replica import Replica
    from elasticdl.packages.all_reduce.staging import Giver, StagedParameters

    transfer.AT_ONCE_BYTES = 0
    worker_transfer.piece_bytes = lambda num_numbers: PIECE_BYTES
    begin, end, began = Replica.begin_stage, Replica.end_stage, [0]

    def begin_stage(replica, outline):
        stage = begin(replica, outline)
        began[0] = replica.position
        return stage

    def end_stage(replica):
        has_ended = end(replica)
        if has_ended:
            (HERE / "stages" / f"{began[0]}-{replica.position}-{os.getpid()}").touch()
            come_to("admitted")
        return has_ended

    Replica.begin_stage, Replica.end_stage = begin_stage, end_stage
    _before(Giver, "next_piece", "giving a piece")
    _before(StagedParameters, "take", "given a piece")
    _after(StagedParameters, "take", "has a piece")


def _watch():
    from elasticdl.backends.numpy import NumpyTrainer
    from elasticdl.packages.all_reduce.collective.group import Group
    from elasticdl.packages.all_reduce.replica import Replica
    from elasticdl.packages.all_reduce.ring_member import RingMember
    from elasticdl.worker.stores import StoreExchange

    for name in ("count", "count_each"):
        _hash_before(Replica, name)
        _after(Replica, name, "after update")
    _after(Group, "mean", "abort after reduction")
    _after(Group, "mean", "after reduction")
    _before(Group, "mean", "during reduction")
    _before(Group, "mean", "before reduction")
    _before(Group, "give", "giving parameters")
    _before(RingMember, "_meet", "rendezvous")
    _after(NumpyTrainer, "export", "export")
    _before(StoreExchange, "push", "before rows")
    _after(StoreExchange, "push", "after rows")


if "elasticdl.worker.__main__" in sys.modules or "worker" in " ".join(sys.orig_argv):
    _watch()
    if PIECE_BYTES:
        _watch_stages()
