"""Kueue on a cluster: its real controller, and queues for tests.

Needs `make kubernetes-tools TOOLS=kueue`. The controller runs on this machine, as the control plane
does. It asks the API server as an administrator, and the API server asks it about
each Job and each pod of the namespaces that have the label `QUEUED`.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from . import processes
from .api import Object
from .binaries import COMPONENTS, binary, missing
from .cluster import Cluster
from .control_plane import openssl

QUEUED = {"test.elasticdl.org/queued": "yes"}
"""Labels of a namespace whose jobs Kueue sees."""

GROUP = "/apis/kueue.x-k8s.io/v1beta2"
_PORT = 9443
_HEALTH_PORT = 8081
_READY_SECONDS = 180
_LOOK_AGAIN_SECONDS = 0.1
_HOOKS = ("clusterqueue", "resourceflavor", "workload", "cohort", "job", "pod")
_CERTIFICATES = "/etc/kueue/metrics/certs"  # Kueue has no setting for this place


class Kueue:
    """Kueue's controller, which runs until the cluster ends."""

    def __init__(self, cluster: Cluster) -> None:
        """Start it; returns when it answers.

        Raises:
            FileNotFoundError: It has not been built.
            TimeoutError: It does not come up; the text has the end of its log.
        """
        self._cluster = cluster
        self._folder = cluster.folder / "kueue"
        self.log = self._folder / "kueue.log"
        self._certificate = self._folder / "tls"
        self._make_certificate()
        self._make_definitions()
        cluster.api.create("/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
        self._start()
        self._make_hooks()

    def add_queue(
        self,
        namespace: str,
        name: str,
        cpus: int,
        nodes: dict[str, str] | None = None,
        **preemption: str,
    ) -> None:
        """Make a queue of a namespace, which may use so many processors, and any memory.

        Args:
            namespace: Its jobs may use it.
            name: The LocalQueue's, and with the namespace that of all else which is made.
            cpus: What it may use.
            nodes: Labels of the nodes that it has.
            preemption: As in a ClusterQueue, such as `withinClusterQueue="LowerPriority"`.
        """
        api, whole = self._cluster.api, f"{namespace}-{name}"
        flavor = _object("ResourceFlavor", whole, {"nodeLabels": nodes or {}})
        api.create(f"{GROUP}/resourceflavors", flavor)
        quota = [{"name": "cpu", "nominalQuota": cpus}, {"name": "memory", "nominalQuota": "1Ti"}]
        group = {
            "coveredResources": ["cpu", "memory"],
            "flavors": [{"name": whole, "resources": quota}],
        }
        spec: Object = {"namespaceSelector": {}, "resourceGroups": [group]}
        if preemption:
            spec["preemption"] = preemption
        api.create(f"{GROUP}/clusterqueues", _object("ClusterQueue", whole, spec))
        local = _object("LocalQueue", name, {"clusterQueue": whole})
        api.create(f"{GROUP}/namespaces/{namespace}/localqueues", local)

    def add_priority(self, name: str, value: int) -> None:
        """Make a priority of what waits in queues; without one it is 0."""
        made = _object("WorkloadPriorityClass", name) | {"value": value}
        self._cluster.api.create(f"{GROUP}/workloadpriorityclasses", made)

    def workloads(self, namespace: str) -> list[Object]:
        """Return what is queued in a namespace, or was admitted."""
        found: list[Object] = self._cluster.api.get(f"{GROUP}/namespaces/{namespace}/workloads")[
            "items"
        ]
        return found

    # --- its start -------------------------------------------------------------------------------

    def _make_certificate(self) -> None:
        self._certificate.mkdir(parents=True)
        name = f"subjectAltName=IP:{self._cluster.network.loopback}"
        words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30"
        files = ("-out", f"{self._certificate}/tls.crt", "-keyout", f"{self._certificate}/tls.key")
        openssl(*words.split(), "-subj", "/CN=kueue", "-addext", name, *files)

    def _make_definitions(self) -> None:
        bases = COMPONENTS["kueue"].folder / "config/components/crd/bases"
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        names = [
            self._cluster.api.create(path, yaml.load(file.read_text(), yaml.CSafeLoader))
            for file in sorted(bases.glob("*.yaml"))
        ]
        for each in names:
            name = each["metadata"]["name"]
            self._cluster.wait_for(f"{path}/{name}", _is_established)

    def _start(self) -> None:
        host = self._cluster.network.loopback
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"{host}:{_HEALTH_PORT}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": host, "port": _PORT, "certDir": str(self._certificate)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "managedJobsNamespaceSelector": {"matchLabels": QUEUED},
            "integrations": {"frameworks": ["batch/job", "pod"]},
        }
        file = self._folder / "config.json"
        file.write_text(json.dumps(config))
        # In a view of /etc of its own, where the one certificate lies that has no setting.
        etc = self._folder / "etc"
        place = etc / Path(_CERTIFICATES).relative_to("/etc")
        place.parent.mkdir(parents=True)
        place.symlink_to(self._certificate)
        run = f"mount --bind {etc} /etc && exec {binary('kueue', 'kueue')} --config={file}"
        run += f" --kubeconfig={self._cluster.kubeconfig}"
        run += " --feature-gates=VisibilityOnDemand=false --zap-log-level=2"
        self._cluster.run(["unshare", "--mount", "--", "sh", "-c", run], self.log)
        self._wait()

    def _make_hooks(self) -> None:
        """Have the API server ask the controller, by its address on this machine."""
        manifests = COMPONENTS["kueue"].folder / "config/components/webhook/manifests.yaml"
        for found in yaml.safe_load_all(manifests.read_text()):
            kind = found["kind"]
            found["metadata"]["name"] = f"kueue-{kind.lower()}"
            hooks = [each for each in found["webhooks"] if each["name"][1:-6] in _HOOKS]
            for each in hooks:
                self._point(each)
            found["webhooks"] = hooks
            self._cluster.api.create(
                f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}s", found
            )

    def _point(self, hook: Object) -> None:
        path = hook["clientConfig"]["service"]["path"]
        address = f"https://{self._cluster.network.loopback}:{_PORT}{path}"
        hook["clientConfig"] = {"url": address, "caBundle": self._authority()}
        if hook["name"][1:-6] in ("job", "pod"):
            hook["namespaceSelector"] = {"matchLabels": QUEUED}

    def _authority(self) -> str:
        return base64.b64encode((self._certificate / "tls.crt").read_bytes()).decode()

    def _wait(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        address = urlsplit(f"https://{self._cluster.network.loopback}:{_PORT}")
        while True:
            try:
                ssl.get_server_certificate((str(address.hostname), _PORT), timeout=1)
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    words = processes.last_lines(self.log)
                    raise TimeoutError(f"Kueue does not answer: {error}\n{words}") from error
            time.sleep(_LOOK_AGAIN_SECONDS)


def why_missing() -> str:
    """Return why Kueue cannot run here, in words for a skipped test, or an empty string."""
    return missing("kueue")


def _object(kind: str, name: str, spec: Object | None = None) -> Object:
    made: Object = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": {"name": name},
    }
    return made | ({"spec": spec} if spec is not None else {})


def _is_established(definition: Object) -> bool:
    conditions = definition.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
