"""The rights that a job's master needs, and who has them: a Role in one namespace."""

from __future__ import annotations

from elasticdl.launchers.kubernetes.pods import Manifest

_NAME = "elasticdl"

RULES: list[Manifest] = [
    # Those of its processes. Others' pods in the namespace can be seen, too: Kubernetes has no
    # right that ends at a label.
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "list", "watch", "delete"]},
    # The job's token, its authority, and the certificate of each pod. It makes them and reads none:
    # a pod has its own mounted. They are deleted when the job has ended.
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete"]},
    # To make its Job the owner of what `kubectl apply` has made; deleted when the job has ended.
    {"apiGroups": [""], "resources": ["configmaps", "services"], "verbs": ["patch", "delete"]},
    # To see that its Job is suspended; to tell it that the job has failed, so that it makes no
    # other pod.
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "patch"]},
]

# To stand in a queue for its processes, to say whether they run, and to leave it.
_OF_QUEUES: list[Manifest] = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "delete"]},
    {"apiGroups": ["batch"], "resources": ["jobs/status"], "verbs": ["patch"]},
]


def rights(namespace: str, service_account: str, with_queues: bool = False) -> list[Manifest]:
    """Return the ServiceAccount of the pods, the Role, and what binds them.

    With queues: also what jobs with `--queue_name` need.
    """
    rules = [*RULES, *_OF_QUEUES] if with_queues else RULES

    def named(kind: str, version: str, name: str) -> Manifest:
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        return {"apiVersion": version, "kind": kind, "metadata": metadata}

    version = "rbac.authorization.k8s.io/v1"
    account = {"kind": "ServiceAccount", "name": service_account}
    return [
        named("ServiceAccount", "v1", service_account),
        named("Role", version, _NAME) | {"rules": rules},
        named("RoleBinding", version, f"{_NAME}-{service_account}")
        | {
            "subjects": [account | ({"namespace": namespace} if namespace else {})],
            "roleRef": {"apiGroup": version.partition("/")[0], "kind": "Role", "name": _NAME},
        },
    ]
