"""A job on the test cluster, started and watched by the command line of elasticdl alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from elasticdl._core import RecordWriter
from scripts.chaos import job as counting
from scripts.job_lines import DONE, records_done
from tests.clusters.kubernetes.api import Object
from tests.clusters.kubernetes.namespace import Namespace

CLI = [sys.executable, "-P", "-m", "elasticdl.cli.main"]
COLLECTIONS = {
    "ServiceAccount": "api/v1",
    "Role": "apis/rbac.authorization.k8s.io/v1",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1",
    "ConfigMap": "api/v1",
    "Service": "api/v1",
    "Job": "apis/batch/v1",
}
HALT = "halt"  # in the folder of a job: see model_zoo/counting/staged.py


class ClusterJob:
    """The counting job: each row of its model says how often it was trained."""

    def __init__(
        self,
        namespace: Namespace,
        folder: Path,
        name: str = "counting",
        rights: tuple[str, ...] = (),
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.folder = folder
        folder.chmod(0o777)  # the pods' user is another one
        self._ids = counting.make_ids(seed=1)
        counting.write_data(folder / "data", self._ids)
        self.full_name = f"{namespace.name}/{name}"
        self.volume = "claim_name=files,mount_path=/data"
        self.epochs = 2
        self.lines: list[str] = []
        self._claim()
        self.apply(self.run("rbac", f"--namespace={namespace.name}", *rights).stdout)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of elasticdl to its end."""
        return subprocess.run(
            [*CLI, *words],
            env=self.environment,
            cwd=counting.ROOT,
            capture_output=True,
            text=True,
            timeout=200,
        )

    @property
    def environment(self) -> dict[str, str]:
        """In which commands find the cluster."""
        return {**os.environ, "KUBECONFIG": str(self.namespace.cluster.kubeconfig)}

    def words(self, **others: object) -> list[str]:
        """Return the words of `elasticdl train`."""
        flags = {
            "launcher": "kubernetes",
            "namespace": self.namespace.name,
            "job_name": self.name,
            "model_zoo": "model_zoo",
            "model_def": "counting.model.forward",
            "training_data": "/data/data",
            "output": "/data/model",
            "job_dir": "/data/job",
            "volume": self.volume,
            "num_workers": counting.NUM_WORKERS,
            "num_ps_pods": counting.NUM_PS,
            "num_epochs": self.epochs,
            "minibatch_size": counting.MINIBATCH_SIZE,
            "num_minibatches_per_task": counting.MINIBATCHES_PER_TASK,
            "worker_resource_request": "cpu=1,memory=512Mi",
            "ps_resource_request": "cpu=1,memory=512Mi",
            "master_resource_request": "cpu=1,memory=512Mi",
            "summary": self.folder / "summary.json",
        } | others
        return ["train", *(f"--{name}={value}" for name, value in flags.items() if value != "")]

    def start_staged(self, seconds: float = 0.0, mebibytes: int = 0, **others: object) -> None:
        """Begin to train with a tempo of its own, so that something can happen in the middle.

        Args:
            seconds: That a minibatch takes at least.
            mebibytes: That a worker holds.
            others: Flags.
        """
        params = f"seconds={seconds};mebibytes={mebibytes};halt=/data/{HALT}"
        self.start(model_def="counting.staged.forward", model_params=params, **others)

    def halt(self) -> None:
        """Have every worker stand still at its next minibatch."""
        (self.folder / HALT).touch()

    def go_on(self) -> None:
        """End `halt`."""
        (self.folder / HALT).unlink()

    def start(self, **others: object) -> None:
        """Begin to train; the command goes on beside the test."""
        self._start(self.words(**others))

    def start_script(self, script: Path, arguments: list[str], **others: object) -> None:
        """Begin to run a script over records that are their own numbers.

        Args:
            script: With a loop of its own.
            arguments: Of the script.
            others: Flags.
        """
        (self.folder / "finals").mkdir()
        (self.folder / "finals").chmod(0o777)
        left_out = dict.fromkeys(("model_zoo", "model_def", "num_ps_pods"), "")
        memory = {"worker_resource_request": "cpu=1,memory=1024Mi"}
        flags = {"training_data": "/data/numbers.recordio", "num_epochs": 1}
        _, *words = self.words(**left_out, **memory, **flags, **others)
        self._start(["run", str(script), *words, "--", *arguments])

    def write_numbers(self, num_records: int) -> None:
        """Write the records of a script."""
        with RecordWriter(str(self.folder / "numbers.recordio")) as writer:
            writer.write_many(str(number).encode() for number in range(num_records))

    def hurry(self) -> None:
        """Let a script go to its end as fast as it can."""
        (self.folder / "finals" / "hurry").touch()

    def _start(self, words: list[str]) -> None:
        self._process = subprocess.Popen(
            [*CLI, *words],
            env=self.environment,
            cwd=counting.ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, pattern: str) -> str:
        """Read what the command says up to a line with the pattern; it must come."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"the command ended without {pattern!r}:\n{''.join(self.lines)}")

    def until_records(self, number: int) -> int:
        """Read until so many records are done, and return how many are."""
        while True:
            done = records_done(self.read_until(DONE))
            assert done is not None
            if done >= number:
                return done

    def end(self) -> int:
        """Read the rest, and return the exit code of the command."""
        assert self._process.stdout is not None
        self.lines += self._process.stdout.readlines()
        self._process.stdout.close()
        return self._process.wait()

    def close(self) -> None:
        """End the command, whatever became of it."""
        if hasattr(self, "_process"):
            self._process.kill()
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()

    def pods(self, role: str) -> list[Object]:
        """Return the pods of a role that are there."""
        selector = f"elasticdl-job-name={self.name},elasticdl-replica-type={role}"
        api = self.namespace.cluster.api
        found: list[Object] = api.get(self.namespace.path("pods"), labelSelector=selector)["items"]
        return found

    def running(self, role: str) -> dict[str, str]:
        """Return the name and identity of each pod of a role that runs."""
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in self.pods(role)
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        }

    def is_exact(self) -> bool:
        """Whether every record was trained once an epoch: the model itself says so, and the job."""
        return self.has_exact_counts() and self.has_exact_ledger()

    def has_exact_counts(self) -> bool:
        """Whether the model says that every record was trained once an epoch."""
        ids = np.concatenate([ids.ravel() for ids in self._ids])
        expected = np.bincount(ids, minlength=counting.NUM_IDS) * self.epochs
        return bool((counting.counts_of(self.folder / "model") == expected).all())

    def has_exact_ledger(self) -> bool:
        """Whether the job says that it has trained every record once an epoch."""
        rows = self.summary()["ledger"]
        return len(rows) == self.epochs and not any(row["lost"] + row["repeated"] for row in rows)

    def summary(self) -> dict[str, Any]:
        """Return what the command has written at the end."""
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    def apply(self, text: str) -> None:
        """Make the objects of manifests, as `kubectl apply` does."""
        for manifest in yaml.safe_load_all(text):
            kind = manifest["kind"]
            self.namespace.create(f"{kind.lower()}s", manifest, group=COLLECTIONS[kind])

    def left(self) -> list[str]:
        """Return what is left of the job on the cluster."""
        kinds = ("pods", "configmaps", "services", "secrets")
        api, selector = self.namespace.cluster.api, f"elasticdl-job-name={self.name}"
        return [
            f"{kind}/{item['metadata']['name']}"
            for kind in kinds
            for item in api.get(self.namespace.path(kind), labelSelector=selector)["items"]
        ]

    def _claim(self) -> None:
        """Make a claim of the folder, which is a volume of all nodes."""
        common = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
        }
        volume = f"files-{self.namespace.name}"
        spec = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": str(self.folder)}, **common}
        spec["claimRef"] = {"namespace": self.namespace.name, "name": "files"}
        api = self.namespace.cluster.api
        api.create("/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": spec})
        claim = {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": volume, **common}
        body = {"metadata": {"name": "files"}, "spec": claim}
        self.namespace.create("persistentvolumeclaims", body)
