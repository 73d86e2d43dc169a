"""The rights that a job's master needs: a Role in one namespace, and its account."""

from __future__ import annotations

from elasticdl.packages.kubernetes.pods import Manifest

_NAME = "elasticdl"

RULES: list[Manifest] = [
    # The rights for the job's processes. They cover other pods of the namespace too, because
    # Kubernetes has no right that is limited by a label.
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "list", "watch", "delete"]},
    # The job's token, its authority, and the certificate of each pod. The master makes them and
    # reads none: a pod has its own mounted. They are deleted when the job has ended.
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete"]},
    # The master makes its Job the owner of the objects that `kubectl apply` has made.
    {"apiGroups": [""], "resources": ["configmaps", "services"], "verbs": ["patch", "delete"]},
    # The master sees that its Job is suspended. It also tells the Job that the job has failed, so
    # that the Job makes no other pod.
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "patch"]},
]

# The master stands in a queue for its processes, says whether they run, and leaves the queue.
_OF_QUEUES: list[Manifest] = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "delete"]},
    {"apiGroups": ["batch"], "resources": ["jobs/status"], "verbs": ["patch"]},
]


def rights(namespace: str, service_account: str, with_queues: bool = False) -> list[Manifest]:
    """Return the ServiceAccount of the pods, the Role, and the binding of both.

    With queues there is a second Role, with the rights that jobs with `--queue_name` also need. So
    who later applies the rights without queues takes nothing from these jobs.
    """

    def named(kind: str, version: str, name: str) -> Manifest:
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        return {"apiVersion": version, "kind": kind, "metadata": metadata}

    version = "rbac.authorization.k8s.io/v1"
    account = {"kind": "ServiceAccount", "name": service_account}

    def granted(name: str, rules: list[Manifest]) -> list[Manifest]:
        return [
            named("Role", version, name) | {"rules": rules},
            named("RoleBinding", version, f"{name}-{service_account}")
            | {
                "subjects": [account | ({"namespace": namespace} if namespace else {})],
                "roleRef": {"apiGroup": version.partition("/")[0], "kind": "Role", "name": name},
            },
        ]

    found = [named("ServiceAccount", "v1", service_account), *granted(_NAME, RULES)]
    return found + (granted(f"{_NAME}.queues", _OF_QUEUES) if with_queues else [])
