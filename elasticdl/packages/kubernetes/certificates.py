"""The Secrets with which the pods of a job prove who they are.

None of them is in a manifest that is printed: a master makes them, with the right to create Secrets
and no right to read one. `docs/designs/tls.md` says which pod has which.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.config import JobConfig
from elasticdl.job import Role
from elasticdl.packages.kubernetes import names
from elasticdl.packages.kubernetes.pods import Manifest, owner_reference
from elasticdl.runtime.credentials.files import AUTHORITY_FILE, AUTHORITY_KEY_FILE

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.job_authority import JobAuthority

UID_KEY = "job-uid"
"""The annotation that tells the owner, in case of an earlier job of the same name."""


def token_secret(config: JobConfig, uid: str, token: bytes) -> Manifest:
    """Return the Secret that all pods of a job have mounted."""
    job_name = config.cluster.job_name
    content = {names.TOKEN_KEY: token.hex(), UID_KEY: uid}
    return _secret(config, job_name, owner_reference(job_name, uid), content)


def authority_secret(config: JobConfig, uid: str, folder: Path) -> Manifest:
    """Return the Secret with an authority that was made in a folder; for the masters alone."""
    job_name = config.cluster.job_name
    files = (AUTHORITY_FILE, AUTHORITY_KEY_FILE)
    content = {name: (folder / name).read_text() for name in files} | {UID_KEY: uid}
    return _secret(config, names.authority_of(job_name), owner_reference(job_name, uid), content)


def replica_secret(
    config: JobConfig, role: Role, index: int, pod: Manifest, authority: JobAuthority
) -> Manifest:
    """Return the Secret of one pod, with a new certificate; it goes when the pod goes.

    Args:
        config: The settings.
        role: The role of the process in the pod.
        index: The index of the process.
        pod: The pod as the API server returns it.
        authority: The authority of the job.
    """
    about = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": about["name"], "uid": about["uid"]}
    files = authority.files_for(role, index)
    content = {name: pem.decode("ascii") for name, pem in files.items()}
    return _secret(config, about["name"], owner, content)


def _secret(config: JobConfig, name: str, owner: Manifest, content: Mapping[str, str]) -> Manifest:
    metadata = {"name": name, "labels": names.labels_of(config), "ownerReferences": [owner]}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": metadata,
        "stringData": dict(content),
    }
