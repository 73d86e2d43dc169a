"""Workers of an all-reduce job in one process: real rings, a real rendezvous, a small model."""

import hashlib
import json
import threading
import time

import numpy as np

from elasticdl._core import PsServer, RingListener
from elasticdl.backends.base import ModelDescription, OptimizerSpec, VariableDescription
from elasticdl.job import Restore, Wait
from elasticdl.master.journal import Journal
from elasticdl.packages.all_reduce.collective.rounds import OfferedMinibatch
from elasticdl.packages.all_reduce.rendezvous import Rendezvous
from elasticdl.packages.all_reduce.replica import Replica
from elasticdl.packages.all_reduce.ring_member import Outdated, OutOfWorld, RingMember
from elasticdl.packages.all_reduce.round_protocol import Proposal

TOKEN = b"secret of this job"
ADAM = OptimizerSpec("adam", {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": 0.0})


class Meeting:
    """The master's part: a rendezvous, and word to those who are to leave their world."""

    def __init__(self):
        self._changed = threading.Condition()
        self._rendezvous = Rendezvous(Journal())
        self._workers = {}

    def add(self, worker):
        with self._changed:
            self._workers[worker.name] = worker

    def lose(self, worker):
        with self._changed:
            del self._workers[worker.name]
            self._rendezvous.lost(worker.name)
            self._advance()

    def _here(self):
        return {name: worker.worker_id for name, worker in self._workers.items()}

    def _advance(self):
        self._rendezvous.advance(self._here(), 0, time.monotonic())
        for name, worker in self._workers.items():
            worker.member.world_ends(self._rendezvous.ended_world(name, self._here()))
        self._changed.notify_all()

    def attend(self, worker, said):
        with self._changed:
            if worker.name not in self._workers:
                return Wait(0.0)
            rendezvous = self._rendezvous
            if rendezvous.restorer == worker.name and said.version >= 0:
                rendezvous.restored(worker.name)
            rendezvous.attend(worker.worker_id, worker.name, said, time.monotonic())
            self._advance()
            if rendezvous.restorer == worker.name and said.version < 0:
                return Restore("")
            seat = rendezvous.seat_of(worker.name, said.told_world, 0)
            if seat is None:
                self._changed.wait(0.05)
                seat = rendezvous.seat_of(worker.name, said.told_world, 0)
            return seat or Wait(0.0)


class RingWorker:
    """One worker: its member, and a thread that has a gradient for each round."""

    def __init__(self, meeting, worker_id, num_numbers, **settings):
        self.worker_id, self.name = worker_id, f"worker {worker_id}"
        self.num_numbers = num_numbers
        self.listener = RingListener("127.0.0.1", 0, TOKEN)
        self.replica = Replica(self._serve, None, **settings)
        rng = np.random.default_rng(1)
        dense = rng.normal(size=num_numbers).astype(np.float32)
        model = ModelDescription(
            tables=(),
            dense=(VariableDescription("w", (num_numbers,), 0),),
            state=(VariableDescription("s", (1,), 0),),
            optimizer=ADAM,
            seed=1,
        )
        self.replica.declare(model, dense, np.zeros(1, np.float32))
        self.member = RingMember(
            lambda said: meeting.attend(self, said),
            self.listener,
            self.listener.address,
            self.replica,
            lambda: self.replica.address,
        )
        self.num_counted = 0
        self._is_stopped = False
        self._thread = threading.Thread(target=self._train, daemon=True)
        meeting.add(self)

    def _serve(self, store):
        return PsServer(store, "127.0.0.1", 0, TOKEN, is_copy=True)

    def start(self):
        self.member.start()
        self._thread.start()

    def stop(self):
        """Hand in nothing more."""
        self._is_stopped = True
        self.member.rest()
        self._thread.join(30)

    def leave(self):
        self.member.leave()
        self.replica.close()

    def _train(self):
        rng = np.random.default_rng(self.worker_id)
        try:
            self.member.begin(self.worker_id, 1)
            while not self._is_stopped:
                self._step(rng)
        except OutOfWorld:
            pass

    def _step(self, rng):
        gradient = rng.normal(size=self.num_numbers).astype(np.float32)
        values = gradient, np.ones(1, np.float32)
        minibatch = OfferedMinibatch(self.worker_id, 1, self.num_counted, int(rng.integers(1, 9)))
        while not self._is_stopped:
            lineage, version = self.replica.lineage, self.replica.version
            try:
                self.member.hand_in(Proposal(minibatch, 0.01, values, lineage, version))
            except Outdated:
                continue
            self.num_counted += 1
            return

    def until(self, condition, seconds=60):
        """Wait until something is true of this worker; it is looked at after each round."""
        with self.member._changed:
            assert self.member._changed.wait_for(condition, seconds), self.member.error

    def digest(self):
        """Return a hash of weights, optimizer slots, state, watermarks and marks."""
        dump = self.replica.dump()
        length = int.from_bytes(dump[:8], "little")
        header, files = json.loads(dump[8 : 8 + length]), dump[8 + length :]
        vectors = files[sum(size for _, size in header["files"][:-1]) :]
        tensors = vectors[8 + int.from_bytes(vectors[:8], "little") :]
        of_rounds = [header["marks"], header["pending"], header["position"], header["version"]]
        return hashlib.sha256(json.dumps(of_rounds).encode() + tensors).hexdigest()


def finish(workers):
    """Have workers hand in nothing more and leave; return the hash of what each holds."""
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.leave()
    return [worker.digest() for worker in workers]
