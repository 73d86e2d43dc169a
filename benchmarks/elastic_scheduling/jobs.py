"""Jobs of the command line on a cluster of this machine, whose steps take a stated time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import yaml

from elasticdl._core import RecordWriter
from elasticdl.job import JobStatus
from elasticdl.launchers.kubernetes.names import PICTURE_ANNOTATION
from elasticdl.rpc.messages import status_from_json
from scripts.cluster.api import MERGE, Object
from scripts.cluster.cluster import Cluster
from scripts.cluster.namespace import Namespace

_ZOO = Path(__file__).parent / "model_zoo"
_CLI = [sys.executable, "-P", "-m", "elasticdl.cli.main"]
_RECORDS_PER_STEP, _STEPS_PER_TASK = 4, 8
_LOOK_SECONDS = 0.1
_BATCH, _RBAC, _CORE = "apis/batch/v1", "apis/rbac.authorization.k8s.io/v1", "api/v1"
_GROUPS = {"Job": _BATCH, "Role": _RBAC, "RoleBinding": _RBAC}
PRIORITIES = {"low": 1, "high": 1000}


@dataclass(frozen=True)
class Work:
    """What a job does: so many steps, one a minibatch.

    params: of the model in `model_zoo/paced`, less where it writes. cpus: of each pod. flags: more
    of `elasticdl train`.
    """

    num_steps: int
    num_workers: int
    params: str
    cpus: str
    num_epochs: int = 1
    flags: Mapping[str, object] = field(default_factory=dict)

    @property
    def num_pods(self) -> int:
        """A master, a ps replica, and the workers."""
        return 2 + self.num_workers


class Arena:
    """A namespace of the cluster, with a folder that all of its pods share."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name

    def __enter__(self) -> Arena:
        self.folder = Path(tempfile.mkdtemp(prefix="elastic-scheduling-"))
        self.folder.chmod(0o777)  # the pods' user is another one
        self.namespace = Namespace.make(self._cluster, self._name, {})
        self._claim()
        self._create(self._say("rbac", f"--namespace={self._name}"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.namespace.remove()
        shutil.rmtree(self.folder, ignore_errors=True)  # a pod may still write its last line

    def prepare(self, name: str, work: Work) -> list[Object]:
        """Write a job's data, and return what is to be made for it; the Job is the last."""
        data = self.folder / name / "data"
        data.mkdir(parents=True)
        self.steps_of(name).mkdir()
        for path in (self.folder / name, self.steps_of(name)):
            path.chmod(0o777)
        with RecordWriter(str(data / "part.recordio")) as writer:
            writer.write_many(
                str(number % 1000).encode() for number in range(work.num_steps * _RECORDS_PER_STEP)
            )
        request = f"cpu={work.cpus},memory=512Mi"
        flags = {
            "launcher": "kubernetes",
            "namespace": self._name,
            "job_name": name,
            "model_zoo": _ZOO,
            "model_def": "paced.model.forward",
            "model_params": f"{work.params};log_dir=/data/{name}/steps",
            "training_data": f"/data/{name}/data",
            "job_dir": f"/data/{name}/job",
            "volume": "claim_name=files,mount_path=/data",
            "num_workers": work.num_workers,
            "num_epochs": work.num_epochs,
            "minibatch_size": _RECORDS_PER_STEP,
            "num_minibatches_per_task": _STEPS_PER_TASK,
            "worker_resource_request": request,
            "ps_resource_request": request,
            "master_resource_request": request,
            **work.flags,
        }
        words = [f"--{flag}={value}" for flag, value in flags.items()]
        return list(yaml.safe_load_all(self._say("train", *words, "--dry_run")))

    def submit(self, manifests: list[Object], is_suspended: bool = False) -> None:
        """Ask for a job as `kubectl apply` does, perhaps suspended."""
        manifests[-1]["spec"]["suspend"] = is_suspended
        for manifest in manifests:
            self._make(manifest)

    def resume(self, name: str) -> None:
        """Let the pods of a suspended job be made."""
        path = self.namespace.path("jobs", name, group=_BATCH)
        self._cluster.api.patch(path, {"spec": {"suspend": False}}, MERGE)

    def delete(self, name: str) -> None:
        """Delete a job and what it owns."""
        path = self.namespace.path("jobs", name, group=_BATCH)
        self._cluster.api.delete(path, propagationPolicy="Background")

    def end_of(self, name: str) -> JobStatus | None:
        """Return the last picture of a job that has finished; None before that.

        Raises:
            RuntimeError: It has failed.
        """
        job = self._cluster.api.get(self.namespace.path("jobs", name, group=_BATCH))
        conditions = {
            each["type"] for each in job["status"].get("conditions", []) if each["status"] == "True"
        }
        annotations = job["metadata"].get("annotations", {})
        if "Failed" in conditions:
            raise RuntimeError(f"the job {name} has failed: {annotations.get(PICTURE_ANNOTATION)}")
        if "Complete" not in conditions:
            return None
        return status_from_json(annotations[PICTURE_ANNOTATION])

    def steps_of(self, name: str) -> Path:
        """Where the workers of a job note their steps."""
        return self.folder / name / "steps"

    def _say(self, *words: str) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self._cluster.kubeconfig)}
        done = subprocess.run(
            [*_CLI, *words], env=environment, capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            raise RuntimeError(f"elasticdl {words[0]} failed:\n{done.stderr}")
        return done.stdout

    def _create(self, text: str) -> None:
        for manifest in yaml.safe_load_all(text):
            self._make(manifest)

    def _make(self, manifest: Object) -> None:
        kind = manifest["kind"]
        self.namespace.create(f"{kind.lower()}s", manifest, _GROUPS.get(kind, _CORE))

    def _claim(self) -> None:
        """Make the claim `files` of the folder, which is on this machine as all nodes are."""
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = f"files-{self._name}"
        spec = {
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(self.folder)},
            "claimRef": {"namespace": self._name, "name": "files"},
            **common,
        }
        self._cluster.api.create(
            "/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": spec}
        )
        claim = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": volume, **common}
        self.namespace.create(
            "persistentvolumeclaims", {"metadata": {"name": "files"}, "spec": claim}
        )


def make_priorities(cluster: Cluster) -> None:
    """Make the PriorityClasses `low` and `high`."""
    for name, value in PRIORITIES.items():
        body = {"metadata": {"name": name}, "value": value}
        cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)


def wait_until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    """Return as soon as something holds.

    Raises:
        TimeoutError: It did not within so many seconds.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(_LOOK_SECONDS)
