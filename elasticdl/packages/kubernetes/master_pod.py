"""`python -m elasticdl.packages.kubernetes.master_pod`: the first program in a master's pod.

The program makes the job's Job the owner of the objects that were made before the Job. It makes the
Secrets with the job's token and the authority for its certificates, if no earlier pod has made
them. Then it becomes the master.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from functools import partial
from pathlib import Path

from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError, LaunchError
from elasticdl.job import Role
from elasticdl.packages.kubernetes import names, process_one
from elasticdl.packages.kubernetes.certificates import UID_KEY, authority_secret, token_secret
from elasticdl.packages.kubernetes.client import Api, ApiError
from elasticdl.packages.kubernetes.pods import Manifest, owner_reference
from elasticdl.packages.kubernetes.retry import Backoff, persistently
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.runtime import process
from elasticdl.runtime.addresses import Listening
from elasticdl.runtime.credentials.authority import Authority
from elasticdl.runtime.credentials.files import AUTHORITY_FILE, AUTHORITY_KEY_FILE, write_private
from elasticdl.runtime.log_lines import log_as

_SECRET_SECONDS = 180.0  # until a node shows a Secret that was made since its pod began
_TOKEN_PLACE = Path("/tmp", process.TOKEN_FILE)
_TLS_PLACE = Path("/tmp/elasticdl-tls")

log = logging.getLogger(__name__)


def main() -> None:
    """Prepare the job, and become its master."""
    log_as("master")
    uid = os.environ[names.OWNER_VARIABLE]
    try:
        config = JobConfig.read(Path(names.SETTINGS_DIR, names.CONFIG_KEY))
        tls_dir = _TLS_PLACE if config.cluster.tls == "job" else None
        api = Api.in_pod()
        os.environ[names.CONTROLLER_VARIABLE] = own(api, config, uid)
        token_file = find_token(api, config, uid, Path(names.SECRET_DIR), _TOKEN_PLACE)
        if tls_dir is not None:
            find_authority(api, config, uid, Path(names.AUTHORITY_DIR), tls_dir)
    except ElasticdlError as error:
        log.error("%s: %s", type(error).__name__, error)
        sys.exit(1)
    job_dir = config.cluster.job_dir
    assert job_dir is not None
    job_dir.mkdir(parents=True, exist_ok=True)
    command = process.command(
        Role.MASTER,
        0,
        job_dir,
        listening=Listening("0.0.0.0", names.host_of_master(config, api.namespace)),
        config_file=Path(names.SETTINGS_DIR, names.CONFIG_KEY),
        token_file=token_file,
        tls_dir=tls_dir,
    )
    os.execv(command[0], process_one.command_of(command))


def own(api: Api, config: JobConfig, uid: str) -> str:
    """Make the Job the owner of the objects that `kubectl apply` has made; this may be repeated.

    Returns:
        The uid of the Service.

    Raises:
        LaunchError: The pod has no right to do this.
    """
    job_name = config.cluster.job_name
    body = {"metadata": {"ownerReferences": [owner_reference(job_name, uid)]}}
    owned = [api.path("configmaps", job_name)]
    if config.of(KubernetesSection).sends_model_zoo:
        owned.append(api.path("configmaps", names.model_map_of(job_name)))
    owned.append(api.path("services", job_name))  # the last one, whose answer is returned
    for path in owned:
        try:
            answer = persistently(
                partial(api.patch, path, body),
                threading.Event(),
                lambda error: log.warning("no part of the job yet: %s", error),
            )
        except ApiError as error:
            raise LaunchError(
                f"{path} cannot be made a part of the job: {error}; elasticdl rbac prints the "
                "rights that the job needs"
            ) from error
    return str(answer["metadata"]["uid"])


def find_token(api: Api, config: JobConfig, uid: str, mounted: Path, place: Path) -> Path:
    """Return the file with the job's token; the first master makes it, and the Secret.

    Args:
        api: The namespace.
        config: The settings.
        uid: The uid of the Job.
        mounted: The folder where the pod sees the Secret; empty as long as there is no Secret.
        place: The file for a new token.

    Raises:
        LaunchError: A Secret of this name exists, and is not the job's.
    """
    place.unlink(missing_ok=True)
    made = token_secret(config, uid, process.write_token(place))
    return mounted / names.TOKEN_KEY if _is_there(api, made, uid, mounted) else place


def find_authority(api: Api, config: JobConfig, uid: str, mounted: Path, place: Path) -> None:
    """Write the job's authority into a folder; the first master makes it, and the Secret.

    The arguments and the errors are as in `find_token`.
    """
    shutil.rmtree(place, ignore_errors=True)
    Authority.create(place, config.cluster.job_name)
    if _is_there(api, authority_secret(config, uid, place), uid, mounted):
        for name in (AUTHORITY_KEY_FILE, AUTHORITY_FILE):
            write_private(place / name, (mounted / name).read_bytes())


def _is_there(api: Api, secret: Manifest, uid: str, mounted: Path) -> bool:
    """Return whether the job's Secret exists already, and is mounted; otherwise make it.

    Raises:
        LaunchError: A Secret of this name exists, and is not the job's.
    """
    name = secret["metadata"]["name"]
    never = threading.Event()
    backoff = Backoff(never)
    deadline = time.monotonic() + _SECRET_SECONDS
    while time.monotonic() < deadline:
        if _read(mounted / UID_KEY) == uid:
            return True
        try:
            persistently(
                lambda: api.create(api.path("secrets"), secret),
                never,
                lambda error: log.warning("the Secret cannot be made yet: %s", error),
            )
            return False
        except ApiError as error:
            if error.code != 409:
                raise LaunchError(
                    f"the Secret {name} cannot be made: {error}; elasticdl rbac prints the rights "
                    "that the job needs"
                ) from error
        # An earlier pod has made the Secret, and it will be mounted soon; or an ending job has it.
        backoff.pause()
    raise LaunchError(
        f"the Secret {name} in {api.namespace} does not belong to this job: delete it, or give the "
        "job another --job_name"
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    main()
