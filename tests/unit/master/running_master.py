"""A master that runs over real sockets, with processes and ps replicas played by the test."""

import asyncio
import json
import threading
from pathlib import Path

import numpy as np

from elasticdl.errors import CheckpointError, ElasticdlError, LaunchError
from elasticdl.job import Shard
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.master.durable import JobData, open_job
from elasticdl.master.effects import ReplicaAccess
from elasticdl.master.master import Master
from elasticdl.runtime.addresses import Listening
from elasticdl.state.memory import MemoryState

TOKEN = b"t" * 32
DATA = JobData(training=(Shard("a", 0, 300),))


class FakeLauncher:
    """Starts nothing; the test says when a process ends."""

    listening = Listening()

    def __init__(self, on_event):
        self._on_event = on_event
        self._lock = threading.Condition()
        self.running = {}
        self.adopted = []
        self.refuses = False

    def start(self, spec):
        if self.refuses:
            raise LaunchError("no more processes on this machine")
        handle = ProcessHandle(spec.role, spec.index, f"{spec.role}-{spec.index}")
        with self._lock:
            self.running[spec.role, spec.index] = handle
            self._lock.notify_all()
        return handle

    def adopt(self, handle):
        self.adopted.append(handle)
        self.running[handle.role, handle.index] = handle

    def stop(self, handle, grace_seconds):
        self.exits(handle.role, handle.index)

    def close(self, grace_seconds):
        for role, index in list(self.running):
            self.exits(role, index)

    leave = close

    def exits(self, role, index, reason=ExitReason.KILLED, code=-9):
        with self._lock:
            handle = self.running.pop((role, index), None)
        if handle is not None:
            self._on_event(Exited(handle, reason, code))

    def wait_for(self, role, index):
        with self._lock:
            assert self._lock.wait_for(lambda: (role, index) in self.running, timeout=100)


class FakeReplicas:
    """What the replicas would say."""

    def __init__(self):
        self.applied = {}
        self.problem = None

    def audit(self, first=0):
        rows = [(id, n, records) for id, (n, records) in self.applied.items()]
        return [np.array(rows, np.int64).reshape(-1, 3)]

    def stats(self):
        return json.dumps([{"watermarks": {"duplicates": 2, "stale_leases": 1, "gaps": 0}}] * 2)

    def expire(self, now_seconds):
        return json.dumps([[{"rows": 1, "candidates": 0}]])

    def checkpoint(self, directory):
        if self.problem:
            raise CheckpointError(self.problem)
        (Path(directory) / "rows").write_text("rows")
        return ['{"replica": 0}']


class Running:
    """A master in a thread of its own."""

    def __init__(self, config, job_dir, state=None, replicas=None):
        self.job_dir = job_dir
        self.state = state or MemoryState()
        self.replicas = replicas or FakeReplicas()
        self.code = self.error = None
        self._config = config
        self._made = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        self._made.wait()

    async def _run(self):
        try:
            job, is_new = open_job(self.state, self._config, lambda: DATA)

            def make_launcher(on_event):
                self.launcher = FakeLauncher(on_event)
                return self.launcher

            self.master = Master(
                job,
                is_new,
                self.job_dir,
                TOKEN,
                make_launcher,
                lambda route, _: ReplicaAccess(route, lambda *_: self.replicas),
            )
            self._loop = asyncio.get_running_loop()
            self._run_task = asyncio.ensure_future(self.master.run())
            self._address_task = asyncio.ensure_future(self._wait_for_address())
            self.code = await self._run_task
        except asyncio.CancelledError:
            pass
        except ElasticdlError as error:
            self.error = error
        finally:
            self._made.set()

    async def _wait_for_address(self):
        while not (self.job_dir / "master.json").exists():
            await asyncio.sleep(0.001)
        self.address = json.loads((self.job_dir / "master.json").read_text())["address"]
        self._made.set()

    def crash(self):
        """End it without a word to anybody, as far as one process can."""
        self.launcher.running.clear()
        (self.job_dir / "master.json").unlink()
        self._loop.call_soon_threadsafe(self._run_task.cancel)
        self.join()

    def join(self):
        self._thread.join()
        return self.code
