"""The actors of a job: each keeps one process, which ends with the actor by the lifeline.

The job keeper keeps the root of the job (`elasticdl.launchers.process`), which starts the master.
The job keeper is named and detached, and Ray starts it again on another node when it is lost. A
role keeper keeps a worker or a ps replica. Ray does not start a role keeper again; the master makes
another one.

Ray is told no secret: the job's token and keys are in its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.errors import LaunchError
from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessEvent, ProcessSpec
from elasticdl.launchers.process.folder import END_FILE
from elasticdl.launchers.process.job import start_root
from elasticdl.launchers.process.launcher import ProcessLauncher
from elasticdl.launchers.process.restarts import Restarts
from elasticdl.packages.ray import cluster
from elasticdl.runtime import process

NODE_IP = "$(NODE_IP)"
"""Stands in a command for the address of the node where the command is started."""

_LOOK_SECONDS = 1.0
_LOOK_FOR_JOB_SECONDS = 5.0
_LOOKS = 3  # in vain, before a process is left alone
_LOCK_SECONDS = 120.0  # that the root before may take to let the folder go
_PLACES_SECONDS = 3.0  # for actors to say where they are
_TELL_SECONDS = 10.0  # for who asks whether the job has begun
_OF_RAY = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE", "RAY_LD_PRELOAD_ON_WORKERS")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a job's processes, which every node must see.

    current: The folder in which the command was given; relative paths of the job begin there.
    """

    job_name: str
    job_dir: str
    current: str

    def enter(self) -> None:
        """Make this process, and its children, run in the surroundings.

        Raises:
            LaunchError: This node does not see the folders.
        """
        config = Path(self.job_dir, process.CONFIG_FILE)
        node = cluster.library().util.get_node_ip_address()
        for path, is_there in ((config, config.is_file()), (self.current, _is_dir(self.current))):
            if not is_there:
                raise LaunchError(
                    f"the node {node} of the Ray cluster does not see {path}: expected --job_dir "
                    "and the folder where the command is given on a file system that all nodes "
                    "share, at the same path"
                )
        os.chdir(self.current)
        for name in _OF_RAY:  # they are of this actor alone
            os.environ.pop(name, None)
        os.environ["RAY_ADDRESS"] = cluster.library().get_runtime_context().gcs_address


class RoleKeeper:
    """The actor of a worker or ps replica."""

    def __init__(self, where: Surroundings, role: str, index: int, command: list[str]) -> None:
        """Start the process; if this fails, `end` returns the reason."""
        self._problem = ""
        self._ended: Future[tuple[str, int | None, str]] = Future()
        self._job_name = where.job_name
        self._lifeline, self._write_end = os.pipe()  # the kernel closes it with this process
        node_ip = cluster.library().util.get_node_ip_address()
        words = [sys.executable, *(node_ip if word == NODE_IP else word for word in command[1:])]
        try:
            where.enter()
            self._launcher = ProcessLauncher(
                self._take, Path(where.job_dir), lifeline=self._lifeline, is_shared=True
            )
            spec = ProcessSpec(Role(role), index, tuple(words))
            self._handle = self._launcher.start(spec)
        except LaunchError as error:
            self._problem = str(error)
            self._ended.set_result((ExitReason.FAILED, None, self._problem))
        threading.Thread(target=self._end_with_job, name="end with job", daemon=True).start()

    async def place(self) -> str:
        """Return the node where the process was started."""
        return str(cluster.library().get_runtime_context().get_node_id())

    async def end(self) -> tuple[str, int | None, str]:
        """Wait for the end of the process; return the reason, the exit code and the last words."""
        return await asyncio.wrap_future(self._ended)

    async def stop(self, grace_seconds: float) -> None:
        """Ask the process to end, and kill it after the grace period."""
        if not self._problem:
            self._launcher.stop(self._handle, grace_seconds)

    def _take(self, event: ProcessEvent) -> None:
        if isinstance(event, Exited):
            self._ended.set_result((event.reason, event.code, event.last_words))

    def _end_with_job(self) -> None:
        """End this actor if the job has no keeper any more: no master will adopt the process."""
        misses = 0
        while misses < _LOOKS:
            time.sleep(_LOOK_FOR_JOB_SECONDS)
            try:
                is_there = cluster.find_actor(cluster.keeper_name(self._job_name)) is not None
            except Exception as error:  # of a cluster that does not answer now
                log.warning("the cluster does not say whether the job is there: %s", error)
                continue
            misses = 0 if is_there else misses + 1
        os._exit(1)  # the process has the lifeline


class JobKeeper:
    """The actor that keeps a job's root, and so the job's master."""

    def __init__(self, where: Surroundings) -> None:
        """Begin to keep the root; `begun` tells whether the root has begun."""
        self._where = where
        self._job_dir = Path(where.job_dir)
        self._begun: Future[str] = Future()
        self._root: subprocess.Popen[bytes] | None = None
        self._restarts = Restarts(at=time.monotonic())
        context = cluster.library().get_runtime_context()
        self._me, self._node = context.current_actor, context.get_node_id()
        self._sending = threading.Lock()
        self._due: list[int] = []  # signals that came while there was no root
        self._notice = 0.0  # seconds in which this node was to be gone, when that was seen
        self._is_second = context.was_current_actor_reconstructed
        threading.Thread(target=self._keep, name="keep", daemon=True).start()

    async def begun(self) -> str:
        """Wait until the root has begun; return the problem, or ""."""
        return await asyncio.wrap_future(self._begun)

    async def send(self, numbers: list[int]) -> None:
        """Send signals to the root: one for an end in order, two for an end now."""
        with self._sending:
            if self._root is None or self._root.poll() is not None:  # another one may begin
                self._due += numbers
                return
            for number in numbers:
                self._root.send_signal(number)

    def _keep(self) -> None:
        try:
            # An earlier actor may have been killed after the end of the job.
            is_over = self._is_second and (self._job_dir / process.PICTURE_FILE).exists()
            problem = "" if is_over else self._start()
            self._begun.set_result(problem)
            while not problem and not self._has_ended():
                problem = self._start_again()
            if problem:
                self._tell_failed(problem)
                time.sleep(_TELL_SECONDS)
            for name in cluster.actors_below(f"{cluster.keeper_name(self._where.job_name)}/"):
                cluster.kill_actor(name)
        except Exception as error:
            log.exception("the job cannot be kept")
            self._tell_failed(f"the job's keeper on Ray has failed: {error}")
        finally:
            cluster.library().kill(self._me, no_restart=True)

    def _start(self) -> str:
        """Start the root; return the problem. The root of an earlier actor may still be ending."""
        deadline = time.monotonic() + (_LOCK_SECONDS if self._is_second else 0.0)
        while True:
            try:
                self._where.enter()
                self._start_root()
                return ""
            except LaunchError as error:
                if time.monotonic() >= deadline:
                    return str(error)
            time.sleep(_LOOK_SECONDS)

    def _start_root(self) -> None:
        bind = cluster.library().util.get_node_ip_address()
        read_end, self._leash = os.pipe()
        try:
            root = start_root(self._job_dir, read_end, bind)
        except LaunchError:
            os.close(self._leash)
            raise
        self._is_second = True
        with self._sending:
            self._root = root
            due, self._due = self._due, []
            for number in due:
                root.send_signal(number)

    def _start_again(self) -> str:
        """Start a lost root again; return the problem."""
        taken = self._restarts.take(time.monotonic())
        if taken is None:
            return "the root of the job was lost too often"
        self._restarts, seconds = taken
        time.sleep(seconds)
        return self._start()

    def _has_ended(self) -> bool:
        """Wait for the end of the root; return whether the job has ended too."""
        while self._root is not None and self._root.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._root.wait(_LOOK_SECONDS)
            self._move_if_drained()
        if self._root is not None:
            os.close(self._leash)
        ends = (process.PICTURE_FILE, END_FILE)
        return any((self._job_dir / name).exists() for name in ends)

    def _move_if_drained(self) -> None:
        """Leave a node that is being drained, if there is another node.

        Ray starts this actor again on the other node. First the job's other processes on the node
        hand over, to a master that answers. They have half of the notice.
        """
        try:
            left = cluster.draining_nodes().get(self._node)
            if left is None or all(node.is_draining for node in cluster.nodes()):
                return
            self._notice = max(self._notice, left)
            if left < self._notice / 2 or self._is_alone():
                log.warning("this node is being drained: the master goes to another one")
                cluster.library().kill(self._me, no_restart=False)
        except Exception as error:  # of Ray; the next look may be a better one
            log.warning("the cluster cannot be asked about its nodes: %s", error)

    def _is_alone(self) -> bool:
        """Return whether no other process of the job is on this node."""
        ray = cluster.library()
        prefix = f"{cluster.keeper_name(self._where.job_name)}/"
        actors = [cluster.find_actor(name) for name in cluster.actors_below(prefix)]
        asked = [actor.place.remote() for actor in actors if actor is not None]
        if not asked:
            return True
        placed, _ = ray.wait(asked, num_returns=len(asked), timeout=_PLACES_SECONDS)
        for place in placed:
            with contextlib.suppress(ray.exceptions.RayError):  # it is gone
                if ray.get(place) == self._node:
                    return False
        return True

    def _tell_failed(self, problem: str) -> None:
        words = {"status": "failed", "message": problem}
        with contextlib.suppress(OSError):
            process.write_whole(self._job_dir / END_FILE, json.dumps(words))


def stop_signals(at_once: bool) -> list[int]:
    """Return the signals with which a root ends its job."""
    return [signal.SIGTERM, signal.SIGINT] if at_once else [signal.SIGTERM]


def _is_dir(path: str) -> bool:
    return Path(path).is_dir()


def as_actor(kind: type, name: str, **options: Any) -> Any:
    """Return the maker of a named actor that outlives the process which makes it."""
    return (
        cluster.library()
        .remote(kind)
        .options(name=name, namespace=cluster.NAMESPACE, lifetime="detached", **options)
    )
