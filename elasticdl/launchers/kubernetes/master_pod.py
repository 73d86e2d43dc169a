"""`python -m elasticdl.launchers.kubernetes.master_pod`: what the pod of a master does first.

It makes the job's Job the owner of what was made before that had an identity. It makes the Secrets
with the job's token and the authority for its certificates, if no pod before it has. Then it
becomes the master.
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
from elasticdl.launchers.kubernetes import names, process_one
from elasticdl.launchers.kubernetes.certificates import UID_KEY, authority_secret, token_secret
from elasticdl.launchers.kubernetes.client import Api, ApiError
from elasticdl.launchers.kubernetes.pods import Manifest, owner_reference
from elasticdl.launchers.kubernetes.retry import Backoff, persistently
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
        api = Api.connect()
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
    """Make the Job the owner of what `kubectl apply` has made beside it; harmless when repeated.

    Returns:
        The identity of the Service.

    Raises:
        LaunchError: It may not.
    """
    job_name = config.cluster.job_name
    body = {"metadata": {"ownerReferences": [owner_reference(job_name, uid)]}}
    owned = [api.path("configmaps", job_name)]
    if config.kubernetes.sends_model_zoo:
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
        uid: The Job.
        mounted: Where the pod sees the Secret, empty as long as there is none.
        place: Where a new token is written.

    Raises:
        LaunchError: There is a Secret of this name, and it is not the job's.
    """
    place.unlink(missing_ok=True)
    made = token_secret(config, uid, process.write_token(place))
    return mounted / names.TOKEN_KEY if _is_there(api, made, uid, mounted) else place


def find_authority(api: Api, config: JobConfig, uid: str, mounted: Path, place: Path) -> None:
    """Write the job's authority into a folder; the first master makes it, and the Secret.

    The arguments and what is raised are as in `find_token`.
    """
    shutil.rmtree(place, ignore_errors=True)
    Authority.create(place, config.cluster.job_name)
    if _is_there(api, authority_secret(config, uid, place), uid, mounted):
        for name in (AUTHORITY_KEY_FILE, AUTHORITY_FILE):
            write_private(place / name, (mounted / name).read_bytes())


def _is_there(api: Api, secret: Manifest, uid: str, mounted: Path) -> bool:
    """Return whether the job has a Secret already, which is mounted; if not it is made.

    Raises:
        LaunchError: There is a Secret of this name, and it is not the job's.
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
        # Made by a pod before this one, and about to be shown; or of a job that is being deleted.
        backoff.pause()
    raise LaunchError(
        f"there is a Secret {name} of something else in {api.namespace}: delete it, or give the "
        "job another --job_name"
    )


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


if __name__ == "__main__":
    main()
