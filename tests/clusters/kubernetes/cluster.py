"""A whole cluster on this machine: a real control plane, and nodes whose pods are processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from . import binaries, control_groups, processes
from .api import ApiError, Object
from .control_plane import ControlPlane, Timing
from .network import connect
from .node import Settings
from .sandbox import REPOSITORY

_LOOK_AGAIN_SECONDS = 0.05
_HEARTBEATS_UNTIL_LOST = 4


@dataclass(frozen=True)
class Shape:
    """What a node says that it has. Nothing checks it against this machine."""

    cpus: float = 8
    memory: str = "16Gi"
    labels: tuple[tuple[str, str], ...] = ()


class NodeProcess:
    """A node of the cluster, as a test handles it."""

    def __init__(self, cluster: Cluster, settings: Settings):
        self.name = settings.name
        self._cluster = cluster
        self._index = settings.index
        folder = Path(settings.folder)
        folder.mkdir()
        self._settings = folder / "settings.json"
        self._settings.touch(0o600)
        self._settings.write_text(json.dumps(asdict(settings)))
        self.log = folder / "node.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start its agent; returns when the node is ready."""
        # Volumes in memory are mounted by the agent, and are gone with its mounts.
        command = [
            "unshare",
            "--mount",
            "--",
            sys.executable,
            "-m",
            "tests.clusters.kubernetes.node",
        ]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self._process = processes.start([*command, self._settings], self.log, environment)
        self.wait_until(ready=True)

    def freeze(self) -> None:
        """Freeze the agent: the node is lost by and by, while its pods go on."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the agent go on."""
        self._signal(signal.SIGCONT)

    def cut(self) -> None:
        """Cut the network of its pods and freeze its agent, as when a switch fails."""
        self.freeze()
        self._cluster.network.cut(self._index)

    def mend(self) -> None:
        """Undo `cut`."""
        self.mend_network()
        self.thaw()

    def close(self) -> None:
        """Have the scheduler give it no more pods; those that are there stay."""
        self._make_unschedulable(True)

    def open(self) -> None:
        """Undo `close`."""
        self._make_unschedulable(False)

    def mend_network(self) -> None:
        """Undo that part of `cut` alone: what runs there is a zombie that can speak again."""
        self._cluster.network.mend(self._index)

    def crash(self) -> None:
        """Kill the agent and all pods with -9, as when a machine loses its power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def is_ready(self) -> bool:
        """Return whether the API says so."""
        try:
            found = self._cluster.api.get(f"/api/v1/nodes/{self.name}")
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
        return conditions["Ready"] == "True" and not found["spec"].get("taints")

    def wait_until(self, ready: bool, seconds: float = 60) -> None:
        """Return when the API says that the node is ready, or that it is not."""
        deadline = time.monotonic() + seconds
        while self.is_ready() != ready:
            if self._process is not None and self._process.poll() is not None:
                words = processes.last_lines(self.log)
                raise RuntimeError(f"the agent of {self.name} ended:\n{words}")
            if time.monotonic() > deadline:
                words = processes.last_lines(self.log)
                raise TimeoutError(f"{self.name}: ready != {ready} for {seconds} s:\n{words}")
            time.sleep(_LOOK_AGAIN_SECONDS)

    def log_of(self, pod_uid: str, container: str) -> Path:
        """Return the file with what a container prints; it can be read while the node is lost."""
        folder = self._settings.parent / "pods" / pod_uid / "containers" / container
        return max(folder.glob("*.log"))

    def _make_unschedulable(self, is_so: bool) -> None:
        patch = {"spec": {"unschedulable": is_so}}
        self._cluster.api.patch(f"/api/v1/nodes/{self.name}", patch)

    def _signal(self, number: int) -> None:
        assert self._process, f"{self.name} does not run"
        self._process.send_signal(number)


class Cluster(AbstractContextManager["Cluster"]):
    """Starts when it is entered, and leaves nothing behind, even if this process is killed.

    It must be entered in a thread that lives as long: its processes die with that.
    """

    def __init__(self, shapes: Sequence[Shape], timing: Timing | None = None):
        """Describe it: one node for each shape.

        Raises:
            RuntimeError: This machine lacks something; the text says what.
        """
        lacks = missing()
        if lacks:
            raise RuntimeError(lacks)
        self._shapes = shapes
        self.timing = timing or Timing()
        self.nodes: list[NodeProcess] = []
        self._own: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        self.folder = Path(tempfile.mkdtemp(prefix="elasticdl-cluster-"))
        self.control_group = f"elasticdl-{self.folder.name.rpartition('-')[2]}"
        self._janitor = _start_janitor(self.folder, self.control_group)
        try:
            self.network = connect(self._janitor.pid)
            self.control_plane = ControlPlane(self.folder, self.network, self.timing)
            self.control_plane.start()
            self.kubeconfig = self.control_plane.kubeconfig
            self.api = self.control_plane.api
            self._start_proxy()
            for shape in self._shapes:
                self.add_node(shape)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def add_node(self, shape: Shape) -> NodeProcess:
        """Add a node, and return when it is ready."""
        index = len(self.nodes)
        access = self.control_plane.access
        settings = Settings(
            name=f"node-{index}",
            index=index,
            folder=str(self.folder / f"node-{index}"),
            server=access.server,
            ca_file=access.ca_file,
            token=access.token,
            network=(self.network.x, self.network.router),
            capacity={
                "cpu": str(shape.cpus),
                "memory": shape.memory,
                "ephemeral-storage": "100Gi",
                "pods": "110",
            },
            labels=dict(shape.labels),
            heartbeat_seconds=self.timing.node_lost / _HEARTBEATS_UNTIL_LOST,
            control_group=self.control_group,
            certificate=self.control_plane.log_certificate,
        )
        node = NodeProcess(self, settings)
        self.nodes.append(node)
        node.start()
        return node

    def run(self, command: list[str], log: Path) -> int:
        """Start a program that ends with the cluster; return its process id."""
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        process = processes.start(command, log, environment)
        self._own.append(process)
        return process.pid

    def wait_for(
        self, path: str, holds: Callable[[Object], bool], seconds: float = 200, **query: str
    ) -> Object:
        """Return an object of the API as soon as `holds(object)`; {} stands for one not there.

        Raises:
            TimeoutError: It never did; with the object as it was.
        """
        deadline = time.monotonic() + seconds
        while True:
            found = self._look(path, query)
            if holds(found):
                return found
            if time.monotonic() > deadline:
                shown = json.dumps(found.get("status", found))
                raise TimeoutError(f"{path} is not as expected after {seconds} s: {shown}")
            time.sleep(_LOOK_AGAIN_SECONDS)

    def logs(self) -> Iterator[Path]:
        """Yield the logs of its own processes."""
        yield from sorted(self.folder.glob("*.log"))
        yield from sorted(self.folder.glob("node-*/node.log"))

    def _start_proxy(self) -> None:
        settings = self.folder / "proxy.json"
        settings.touch(0o600)
        settings.write_text(json.dumps(asdict(self.control_plane.access)))
        command = [sys.executable, "-m", "tests.clusters.kubernetes.proxy", str(settings)]
        self.run(self.network.in_router(command), self.folder / "proxy.log")

    def _look(self, path: str, query: dict[str, str]) -> Object:
        try:
            return self.api.get(path, **query)
        except ApiError as error:
            if error.code == 404:
                return {}
            raise
        except OSError as error:
            return {"unreachable": str(error)}

    def _close(self) -> None:
        for node in self.nodes:
            node.crash()
        for process in reversed(self._own):
            processes.stop(process)
        if hasattr(self, "control_plane"):
            self.control_plane.stop()
        assert self._janitor.stdin
        self._janitor.stdin.close()
        code = self._janitor.wait()
        if code:
            raise RuntimeError(f"the cluster could not be tidied up: {self.folder} (exit {code})")


def missing() -> str:
    """Return why no cluster can run here, in words for a skipped test, or an empty string."""
    if os.geteuid() != 0:
        return "needs root: pods get namespaces, users and control groups of their own"
    if any(REPOSITORY.is_relative_to(folder) for folder in ("/tmp", "/var/tmp")):
        return f"{REPOSITORY}: pods have a /tmp of their own; expected the tree in another folder"
    return binaries.missing("etcd", "kubernetes") or control_groups.missing()


def _start_janitor(folder: Path, control_group: str) -> subprocess.Popen[bytes]:
    command = ["unshare", "--net", "--", sys.executable, "-m", "tests.clusters.kubernetes.janitor"]
    janitor = subprocess.Popen(
        [*command, str(folder), control_group],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        start_new_session=True,
    )
    assert janitor.stdout
    with janitor.stdout:
        if not janitor.stdout.readline():
            raise RuntimeError("the janitor of the cluster did not start")
    return janitor
