"""A node: an agent that runs the pods bound to it as processes of this machine.

    python -m tests.clusters.kubernetes.node SETTINGS.json

One process a node, so that a test can freeze it (its pods live on, and the node is lost) or kill
it (its pods die too, as when a machine loses its power).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .api import STRATEGIC, Access, Api, ApiError, Object
from .logs import LogServer
from .network import Network
from .pod import Pod
from .services import Follower
from .status import now

_RETRY_SECONDS = 0.5
_GONE_OR_ANOTHER = (404, 409)


@dataclass(frozen=True)
class Settings:
    """What a node is.

    Attributes:
        name: The node's.
        index: Its place in the cluster, from 0; its pods have addresses of their own by it.
        folder: Where its pods' files lie.
        capacity: Its resources, as in the API: cpu, memory, pods.
        labels: Its labels.
        heartbeat_seconds: How often it says that it is ready.
        control_group: Its pods' control groups are below this one.
        certificate: The files of the certificate and the key of its log server, which trusts
            who has the same.
    """

    name: str
    index: int
    folder: str
    server: str
    ca_file: str
    token: str
    network: tuple[int, int]
    capacity: dict[str, str]
    labels: dict[str, str]
    heartbeat_seconds: float
    control_group: str
    certificate: tuple[str, str]


class Node:
    """What the pods of a node share."""

    pod_files = ("hosts", "nsswitch.conf", "resolv.conf")

    def __init__(self, settings: Settings):
        self.settings = settings
        self.api = Api(Access(settings.server, settings.ca_file, settings.token))
        self.folder = Path(settings.folder)
        self.network = Network(*settings.network)
        self.control_group = settings.control_group
        host, port = settings.server.removeprefix("https://").split(":")
        self.environment = {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
        }
        self._hosts = threading.Lock()  # guards the files of `write_hosts`
        self._lock = threading.Lock()  # guards the three below
        self._pods: dict[str, Pod] = {}
        self._free = list(range(250))
        self._taken: dict[str, int] = {}  # wire -> number
        self._services = Follower(self.api, self._rewrite_hosts)
        self._logs = LogServer(
            self.network.host, settings.certificate, self._find_log, self._find_address
        )

    def run(self) -> None:
        """Be a node until this process is killed."""
        self._logs.start()
        self._services.start()
        self._beat()
        threading.Thread(target=self._beat_for_ever, daemon=True).start()
        while True:
            try:
                self._follow_pods()
            except (ApiError, OSError, ValueError) as error:
                self.complain(f"pods: {type(error).__name__}: {error}")
                time.sleep(_RETRY_SECONDS)

    # What pods call.

    def connect(self, sandbox: int) -> tuple[str, str]:
        """Wire a pod's network; return its address and the wire's name."""
        with self._lock:
            if not self._free:
                raise RuntimeError(f"node {self.settings.name} has no free pod address")
            number = self._free.pop(0)
        address = self.network.pod(self.settings.index, number)
        wire = f"n{self.settings.index}p{number}"
        with self._lock:
            self._taken[wire] = number
        self.network.add_pod(sandbox, wire, address)
        return address, wire

    def disconnect(self, pod: Pod) -> None:
        """Take back a pod's address."""
        with self._lock:
            number = self._taken.pop(pod.wire, None)
            if number is not None:
                self._free.append(number)
        pod.wire = ""

    def write_hosts(self, pod: Pod) -> None:
        """Write the files below /etc of a pod that tell it names."""
        with self._hosts:  # the pod's own thread and that of the services come at once
            self._write_hosts(pod)

    def _write_hosts(self, pod: Pod) -> None:
        folder = pod.folder / "etc"
        folder.mkdir(parents=True, exist_ok=True)
        about, spec = pod.object["metadata"], pod.object["spec"]
        lines = ["127.0.0.1 localhost", f"{pod.address} {spec.get('hostname', about['name'])}"]
        for alias in spec.get("hostAliases", []):
            lines.append(" ".join([alias["ip"], *alias.get("hostnames", [])]))
        lines += self._services.now().hosts(about["namespace"])
        for name, text in (
            ("hosts", "\n".join(lines) + "\n"),
            ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
            ("resolv.conf", ""),
        ):
            partial = folder / f"{name}.partial"
            partial.write_text(text)
            partial.replace(folder / name)

    def event(self, pod: Object, reason: str, words: str, kind: str = "Warning") -> None:
        """Record an event about a pod."""
        about = pod["metadata"]
        body = {
            "metadata": {"generateName": f"{about['name'][:40]}.", "namespace": about["namespace"]},
            "involvedObject": {
                "kind": "Pod",
                "apiVersion": "v1",
                "name": about["name"],
                "namespace": about["namespace"],
                "uid": about["uid"],
            },
            "reason": reason,
            "message": words,
            "type": kind,
            "source": {"component": "kubelet", "host": self.settings.name},
            "firstTimestamp": now(),
            "lastTimestamp": now(),
            "count": 1,
        }
        path = f"/api/v1/namespaces/{about['namespace']}/events"
        self.persist(lambda: self.api.create(path, body))

    def persist(self, action: Callable[[], object]) -> None:
        """Write to the API server, however long it is away; what is gone needs no more."""
        while True:
            try:
                action()
                return
            except ApiError as error:
                if error.code in _GONE_OR_ANOTHER:
                    return
                if error.code < 500 and error.code != 429:
                    self.complain(str(error))
                    return
            except OSError:
                pass  # lint: the API server is away
            time.sleep(_RETRY_SECONDS)

    def forget(self, pod: Pod) -> None:
        """Let go of a pod that is over."""
        with self._lock:
            uid = pod.object["metadata"]["uid"]
            if self._pods.get(uid) is pod:
                del self._pods[uid]

    def complain(self, words: str) -> None:
        """Write to the node's log."""
        print(f"{now()} {words}", file=sys.stderr, flush=True)

    # Its own threads.

    def _follow_pods(self) -> None:
        query = {"fieldSelector": f"spec.nodeName={self.settings.name}"}
        listed = self.api.get("/api/v1/pods", **query)
        found = {pod["metadata"]["uid"]: pod for pod in listed["items"]}
        with self._lock:
            lost = [pod for uid, pod in self._pods.items() if uid not in found]
        for pod in lost:
            pod.removed()
        for each in found.values():
            self._see(each)
        version = listed["metadata"]["resourceVersion"]
        for kind, changed in self.api.watch("/api/v1/pods", version, **query):
            if kind == "DELETED":
                with self._lock:
                    gone = self._pods.get(changed["metadata"]["uid"])
                if gone:
                    gone.removed()
            elif kind != "BOOKMARK":
                self._see(changed)

    def _see(self, found: Object) -> None:
        uid = found["metadata"]["uid"]
        with self._lock:
            known = self._pods.get(uid)
            if known is None:
                pod = self._pods[uid] = Pod(self, found)
        if known:
            known.update(found)
        else:
            pod.start()

    def _beat_for_ever(self) -> None:
        while True:
            time.sleep(self.settings.heartbeat_seconds)
            try:
                self._beat()
            except (ApiError, OSError) as error:
                self.complain(f"heartbeat: {type(error).__name__}: {error}")

    def _beat(self) -> None:
        try:
            self.api.patch(f"/api/v1/nodes/{self.settings.name}/status", self._status(), STRATEGIC)
        except ApiError as error:
            if error.code != 404:
                raise
            labels = {"kubernetes.io/hostname": self.settings.name, "kubernetes.io/os": "linux"}
            about = {"name": self.settings.name, "labels": labels | self.settings.labels}
            spec = {"podCIDR": self.network.pods_of(self.settings.index)}
            node = {"kind": "Node", "apiVersion": "v1", "metadata": about, "spec": spec}
            self.api.create("/api/v1/nodes", node | self._status())

    def _status(self) -> Object:
        conditions = [("Ready", "True", "KubeletReady", "the agent of the test cluster is ready")]
        for pressure in ("MemoryPressure", "DiskPressure", "PIDPressure"):
            conditions.append((pressure, "False", f"KubeletHasNo{pressure}", ""))
        return {
            "status": {
                "capacity": self.settings.capacity,
                "allocatable": self.settings.capacity,
                "addresses": [
                    {"type": "InternalIP", "address": self.network.host},
                    {"type": "Hostname", "address": self.settings.name},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.port}},
                "conditions": [
                    {
                        "type": kind,
                        "status": status,
                        "reason": reason,
                        "message": words,
                        "lastHeartbeatTime": now(),
                    }
                    for kind, status, reason, words in conditions
                ],
            }
        }

    def _rewrite_hosts(self) -> None:
        with self._lock:
            pods = [pod for pod in self._pods.values() if pod.wire]
        for pod in pods:
            self.write_hosts(pod)

    def _find_log(
        self, namespace: str, name: str, container: str, previous: bool
    ) -> Callable[[], tuple[Path, bool] | None] | None:
        pod = self._find_pod(namespace, name)
        return None if pod is None else lambda: pod.log_of(container, previous)

    def _find_address(self, namespace: str, name: str) -> str:
        pod = self._find_pod(namespace, name)
        return "" if pod is None else pod.address

    def _find_pod(self, namespace: str, name: str) -> Pod | None:
        with self._lock:
            pods = list(self._pods.values())
        for pod in pods:
            about = pod.object["metadata"]
            if (about["namespace"], about["name"]) == (namespace, name):
                return pod
        return None


def main() -> None:
    """Run the node that a file of settings describes."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    Node(Settings(**settings)).run()


if __name__ == "__main__":
    main()
