"""Makes the pods of a job, as functions of the settings alone.

The pods meet the Pod Security Standard `restricted`: no user root, no capability, no way to gain
rights, and the system's own seccomp profile. Their root file system is read-only, and they have
their own folders to write in. The user is responsible for volumes of a host path and for
`--cluster_spec`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elasticdl.config import JobConfig
from elasticdl.job import Role
from elasticdl.packages.kubernetes import names, words
from elasticdl.packages.kubernetes.resource import Resource
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.packages.kubernetes.settle import has_secret
from elasticdl.packages.kubernetes.words import Volume

Manifest = Resource

USER_ID = 1000
GRACE_SECONDS = 30  # from SIGTERM to SIGKILL, when somebody else ends a pod
_LOST_NODE_SECONDS = 15  # a pod is given up so long after its node was
_SECRET_MODE = 0o440


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts that are equal in all pods of a job.

    config: The settings as pods have them (`settle`).
    model_files: Key in the ConfigMap of the model folder -> path in the folder.
    """

    config: JobConfig
    model_files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WantedPod:
    """A process that its master wants in a pod: a worker, ps replica or model server.

    priority_class: The priority; "" is the cluster's default. memory: The memory request and limit,
        if the settings do not decide it. queue: The queue in which the pod waits by itself, if any.
    """

    role: Role
    index: int
    name: str
    command: Sequence[str]
    priority_class: str = ""
    memory: str = ""
    queue: str = ""


def pod_spec(
    plan: Plan,
    role: Role,
    command: Sequence[str],
    priority_class: str = "",
    memory: str = "",
    name: str = "",
) -> Manifest:
    """Return the specification of a pod; see `WantedPod`. The name is that of a replica's pod."""
    config = plan.config
    settings = config.of(KubernetesSection)
    volumes, mounts = _volumes(plan, role, name)
    spec: Manifest = {
        "restartPolicy": "Never",
        "serviceAccountName": settings.service_account,
        # Only the master speaks to Kubernetes.
        "automountServiceAccountToken": role is Role.MASTER,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "tolerations": [*words.parse_tolerations(settings.tolerations), *_of_lost_nodes()],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(config, role, command, mounts, memory)],
        "volumes": volumes,
    }
    if settings.scheduler_name:
        spec["schedulerName"] = settings.scheduler_name
    if priority_class:
        spec["priorityClassName"] = priority_class
    if settings.image_pull_secrets:
        secrets = words.parse_names(settings.image_pull_secrets)
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    if settings.node_selector:
        spec["nodeSelector"] = words.parse_labels(settings.node_selector)
    if settings.affinity:
        spec["affinity"] = json.loads(settings.affinity)
    return spec


def replica_pod(plan: Plan, replica: WantedPod, owners: Sequence[Manifest]) -> Manifest:
    """Return the pod of a process that its master asks for; see `owners`."""
    config = plan.config
    own = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}  # its master asks for another
    own |= scraped(config)
    queue = {names.QUEUE_LABEL: replica.queue} if replica.queue else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": replica.name,
            "labels": names.labels_of_pod(config, replica.role, replica.index) | queue,
            "annotations": own | words.parse_annotations(config.of(KubernetesSection).annotations),
            "ownerReferences": list(owners),
        },
        "spec": pod_spec(
            plan,
            replica.role,
            replica.command,
            replica.priority_class,
            replica.memory,
            replica.name,
        ),
    }


def scraped(config: JobConfig) -> dict[str, str]:
    """Return the usual annotations by which Prometheus finds the metrics of a pod."""
    port = config.seeing.metrics_port
    if port is None:
        return {}
    scheme = "http" if config.cluster.tls == "off" else "https"
    found = {"scrape": "true", "port": str(port), "path": "/metrics", "scheme": scheme}
    return {f"prometheus.io/{name}": value for name, value in found.items()}


def owner_reference(job_name: str, uid: str) -> Manifest:
    """Return the reference that makes a job's Job the owner of an object.

    The reference does not name the Job as a controller: otherwise the Job's controller would count
    the pods as its own.
    """
    return {"apiVersion": "batch/v1", "kind": "Job", "name": job_name, "uid": uid}


def owners(job_name: str, job_uid: str, service_uid: str) -> tuple[Manifest, ...]:
    """Return the owners of the pods that a master requests: the Job, and a controller.

    `kubectl drain` evicts only pods with a controller, because the controller makes others in their
    place. Here the master does this, and its Service stands for it. The Service is deleted when the
    job has ended; the Job stays, and so do the pods and their logs.
    """
    service = {"apiVersion": "v1", "kind": "Service", "name": job_name, "uid": service_uid}
    return owner_reference(job_name, job_uid), service | {"controller": True}


def _of_lost_nodes() -> list[Manifest]:
    """Return how long a pod stays on a node that gives no sign of life; the default is 300 s."""
    return [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _LOST_NODE_SECONDS,
        }
        for state in ("not-ready", "unreachable")
    ]


def _container(
    config: JobConfig,
    role: Role,
    command: Sequence[str],
    mounts: list[Manifest],
    memory: str,
) -> Manifest:
    settings = config.of(KubernetesSection)
    requests = config.resources.requests(role)
    limits = settings.limits(role, requests)
    if memory:
        requests, limits = requests | {"memory": memory}, limits | {"memory": memory}
    container: Manifest = {
        "name": names.CONTAINER,
        "image": settings.image,
        "command": list(command),
        "env": _environment(config, role),
        "resources": {"requests": requests, "limits": limits},
        "volumeMounts": mounts,
        # The master learns how a process ended from the end of its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if settings.image_pull_policy is not None:
        container["imagePullPolicy"] = settings.image_pull_policy
    if role is Role.MASTER:
        container["ports"] = [{"name": "master", "containerPort": config.cluster.master_port}]
    return container


def _environment(config: JobConfig, role: Role) -> list[Manifest]:
    environment: list[Manifest] = [
        # gRPC's C++ core would write a line for each stranger without a certificate.
        {"name": "GRPC_VERBOSITY", "value": "ERROR"},
        _from_field("POD_IP", "status.podIP"),
        _from_field("POD_NAMESPACE", "metadata.namespace"),
        {"name": "HOME", "value": "/tmp"},
        {"name": "USER", "value": "elasticdl"},
    ]
    if role is Role.MASTER:
        owner = f"metadata.labels['{names.OWNER_UID_LABEL}']"
        environment.append(_from_field(names.OWNER_VARIABLE, owner))
    for variable in words.parse_variables(config.of(KubernetesSection).envs):
        source = {"secretKeyRef": {"name": variable.secret, "key": variable.key}}
        environment.append({"name": variable.name, "valueFrom": source})
    return environment


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _volumes(plan: Plan, role: Role, name: str) -> tuple[list[Manifest], list[Manifest]]:
    """Return the volumes of a pod, and the mount of each."""
    config = plan.config
    job = config.cluster.job_name
    token: Manifest = {"secretName": job, "defaultMode": _SECRET_MODE}
    if role is Role.MASTER:
        token["optional"] = True  # the first pod of the master makes it
    volumes: list[Manifest] = [
        {"name": "settings", "configMap": {"name": job}},
        {"name": "secret", "secret": token},
        {"name": "tmp", "emptyDir": {}},
    ]
    mounts: list[Manifest] = [
        {"name": "settings", "mountPath": names.SETTINGS_DIR, "readOnly": True},
        {"name": "secret", "mountPath": names.SECRET_DIR, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if config.cluster.tls == "job":
        source, path = _certificates(config, role, name)
        volumes.append({"name": "tls", "secret": source})
        mounts.append({"name": "tls", "mountPath": path, "readOnly": True})
    if str(config.cluster.job_dir) == names.JOB_DIR:
        volumes.append({"name": "job", "emptyDir": {}})
        mounts.append({"name": "job", "mountPath": names.JOB_DIR})
    if config.of(KubernetesSection).sends_model_zoo:
        items = [{"key": key, "path": path} for key, path in plan.model_files.items()]
        model = {"name": names.model_map_of(job), "items": items}
        volumes.append({"name": "model", "configMap": model})
        mounts.append({"name": "model", "mountPath": names.MODEL_DIR, "readOnly": True})
    if role is not Role.PS and has_secret(config):
        data = {"secretName": names.data_secret_of(job), "defaultMode": _SECRET_MODE}
        volumes.append({"name": "data-secret", "secret": data})
        mounts.append({"name": "data-secret", "mountPath": names.DATA_SECRET_DIR, "readOnly": True})
    sources: dict[tuple[str, ...], str] = {}  # what a volume is made of -> its name
    for volume in config.of(KubernetesSection).volumes():
        key = (volume.secret_name, volume.claim_name, volume.host_path, volume.host_path_type)
        if key not in sources:
            sources[key] = f"volume-{len(sources)}"
            volumes.append({"name": sources[key]} | _source(volume))
        mount = {"name": sources[key], "mountPath": volume.mount_path}
        mounts.append(mount | ({"subPath": volume.sub_path} if volume.sub_path else {}))
    return volumes, mounts


def _certificates(config: JobConfig, role: Role, name: str) -> tuple[Manifest, str]:
    """Return the Secret with a pod's certificate, and the path of its mount."""
    if role is Role.MASTER:
        secret = names.authority_of(config.cluster.job_name)
        source = {"secretName": secret, "defaultMode": _SECRET_MODE}
        return source | {"optional": True}, names.AUTHORITY_DIR  # made as the token is
    # The Secret is made once the pod has a node, and the pod waits for it.
    return {"secretName": name, "defaultMode": _SECRET_MODE}, names.TLS_DIR


def _source(volume: Volume) -> Manifest:
    if volume.secret_name:
        return {"secret": {"secretName": volume.secret_name, "defaultMode": _SECRET_MODE}}
    if volume.claim_name:
        return {"persistentVolumeClaim": {"claimName": volume.claim_name}}
    kind = {"type": volume.host_path_type} if volume.host_path_type else {}
    return {"hostPath": {"path": volume.host_path} | kind}
