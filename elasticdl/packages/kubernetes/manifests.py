"""Makes the objects of Kubernetes that begin a job; `--dry_run` prints exactly these.

The Secret with the job's token is not among them. The first pod of the master makes that Secret, so
no secret passes through a terminal or a file. If the user has put passwords into the settings of
the data reader, they are among the objects, and such a job is not printed. The values of `--envs`
are in a Secret too, which is not printed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticdl.config import JobConfig
from elasticdl.errors import ConfigError
from elasticdl.job import Role
from elasticdl.packages.kubernetes import names, process_one
from elasticdl.packages.kubernetes.cluster_spec import ClusterSpec
from elasticdl.packages.kubernetes.pods import Manifest, Plan, pod_spec, scraped
from elasticdl.packages.kubernetes.resource import Resource
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.packages.kubernetes.settle import has_lasting_state, secrets_of, settle
from elasticdl.packages.kubernetes.words import parse_annotations, values_of

MAX_BYTES = 1024 * 1024  # of a ConfigMap
_SPARE_BYTES = 16 * 1024  # for its names


@dataclass(frozen=True, slots=True)
class Packed:
    """Files in the form in which a ConfigMap holds them.

    text: key -> the content of a file in UTF-8.
    binary: key -> any other content, in Base64.
    paths: key -> the path of the file in the folder; a key may hold no "/".
    """

    text: dict[str, str] = field(default_factory=dict)
    binary: dict[str, str] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)


def pack(folder: Path, what: str = "--model_zoo") -> Packed:
    """Read a folder, and what links in it name; hidden and compiled files are left out.

    Args:
        folder: The folder.
        what: The flag with which the user names the folder.

    Raises:
        ConfigError: There is no such folder, or the folder is too large for a ConfigMap.
    """
    if not folder.is_dir():
        raise ConfigError(f"{what}: expected a folder, found none at {folder}")
    packed = Packed()
    size = 0
    for path in sorted(_files(folder)):
        place = path.relative_to(folder).as_posix()
        size += path.stat().st_size  # before the file is read, which may be one of data
        if size > MAX_BYTES - _SPARE_BYTES:
            raise ConfigError(
                f"{what}={folder}: more than 1 MiB of files, which is what a ConfigMap takes: "
                "put the folder into an image (elasticdl zoo build; --image_name), or on a volume "
                f"(--volume; {what} is then its path in the pods, with --send_model_zoo=false)"
            )
        content = path.read_bytes()
        key = _key(place, packed.paths)
        packed.paths[key] = place
        try:
            packed.text[key] = content.decode()
        except UnicodeDecodeError:
            packed.binary[key] = base64.b64encode(content).decode("ascii")
    return packed


def _key(place: str, taken: Container[str]) -> str:
    """Return a key that is like the path: letters, digits, "-", "_" and "."."""
    key = wanted = re.sub(r"[^A-Za-z0-9_.-]", ".", place).strip(".")[-200:]
    number = 1
    while key in taken:
        number += 1
        key = f"{number}.{wanted}"
    return key


def _files(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files below a folder, also those in folders that links name.

    A link to a folder above it has no end, and is left out.
    """
    inside = (*above, folder.resolve())
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            if path.resolve() not in inside:
                yield from _files(path, inside)
        elif path.is_file():
            yield path


_MASTER_RETURNS = 1000
"""The number of master pods that the Job makes. The pauses between them grow to ten minutes."""


def manifests(config: JobConfig) -> list[Manifest]:
    """Return the objects of a job in the order in which they must be made; the Job is the last.

    Args:
        config: The settings that the user gave; the files that they name are read here.

    Raises:
        ConfigError: The job cannot run with these settings, or a file cannot be read.
    """
    settled, kubernetes = settle(config), config.of(KubernetesSection)
    flag = "--model_zoo" if config.model.script is None else "the folder of the script"
    packed = pack(config.model.model_zoo, flag) if kubernetes.sends_model_zoo else Packed()
    spec = ClusterSpec.read(kubernetes.cluster_spec)
    settings = {names.CONFIG_KEY: settled.model_dump_json(indent=2)}
    if kubernetes.cluster_spec is not None:
        settings[names.CLUSTER_SPEC_KEY] = _text(kubernetes.cluster_spec)
    job_name = config.cluster.job_name
    objects = []
    if kubernetes.sends_model_zoo:
        settings[names.MODEL_FILES_KEY] = json.dumps(packed.paths, indent=1)
        model = {"data": packed.text, "binaryData": packed.binary}
        objects.append(_object(settled, "v1", "ConfigMap", names.model_map_of(job_name), model))
    objects.append(_object(settled, "v1", "ConfigMap", job_name, {"data": settings}))
    for name, secrets in (
        (names.data_secret_of(job_name), secrets_of(config)),
        (names.env_secret_of(job_name), values_of(kubernetes.envs)),
    ):
        if secrets:
            content = {"type": "Opaque", "stringData": secrets}
            objects.append(_object(settled, "v1", "Secret", name, content))
    objects.append(spec.service(master_service(settled)))
    objects.append(master_job(Plan(settled, packed.paths), spec))
    return objects


def master_service(config: JobConfig) -> Manifest:
    """Return the Service with the name under which the job's pods find any pod of the master."""
    selector = {names.JOB_LABEL: config.cluster.job_name, names.ROLE_LABEL: str(Role.MASTER)}
    port = {"name": "master", "port": config.cluster.master_port, "targetPort": "master"}
    # A slow node makes its pods "not ready" for a while, but the master still works.
    spec = {
        "spec": {"selector": selector, "ports": [port], "publishNotReadyAddresses": True},
    }
    return _object(config, "v1", "Service", config.cluster.job_name, spec)


def master_job(plan: Plan, spec: ClusterSpec) -> Manifest:
    """Return the Job of the master's pod; the Job owns all other objects of the job.

    A pod on a lost node never ends, so another pod is made while the first is being deleted. The
    journal of the job tells the two masters apart. A master with its state in its pod is not made
    again: a new master would begin the job anew.
    """
    config, kubernetes = plan.config, plan.config.of(KubernetesSection)
    module = "elasticdl.packages.kubernetes.master_pod"
    command = process_one.command_of(["python", "-P", "-u", "-m", module])
    labels = names.labels_of_pod(config, Role.MASTER, 0)
    own = {} if config.seeing.dashboard_port is None else scraped(config)  # they are the page's
    pod = spec.pod(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "labels": labels,
                "annotations": own | parse_annotations(kubernetes.annotations),
            },
            "spec": pod_spec(plan, Role.MASTER, command, kubernetes.master_pod_priority),
        }
    )
    job: Resource = {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": _MASTER_RETURNS if has_lasting_state(config) else 0,
        "podReplacementPolicy": "TerminatingOrFailed",
        "template": {"metadata": pod["metadata"], "spec": pod["spec"]},
    }
    if kubernetes.ttl is not None:
        job["ttlSecondsAfterFinished"] = kubernetes.ttl
    if not kubernetes.queue_name:
        return _object(config, "batch/v1", "Job", config.cluster.job_name, {"spec": job})
    job["suspend"] = True  # the queue lets it go
    made = _object(config, "batch/v1", "Job", config.cluster.job_name, {"spec": job})
    made["metadata"]["labels"][names.QUEUE_LABEL] = kubernetes.queue_name
    return made


def as_yaml(objects: list[Manifest]) -> str:
    """Return objects as YAML for `kubectl apply -f -`."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def represent_str(self, text: str) -> yaml.ScalarNode:
            style = "|" if "\n" in text else None
            return self.represent_scalar("tag:yaml.org,2002:str", text, style)

        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(str, Dumper.represent_str)
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, explicit_start=True)


def _object(config: JobConfig, version: str, kind: str, name: str, content: Resource) -> Manifest:
    metadata: Resource = {"name": name, "labels": names.labels_of(config)}
    if config.of(KubernetesSection).namespace:
        metadata["namespace"] = config.of(KubernetesSection).namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata} | content


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--cluster_spec={path}: cannot be read: {error}") from error
