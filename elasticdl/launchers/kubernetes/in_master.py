"""What a master does with Kubernetes: it makes a launcher, and tells its Job how the job ended."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import process
from elasticdl.config import JobConfig
from elasticdl.errors import ElasticdlError
from elasticdl.launchers.base import Launcher, OnEvent
from elasticdl.launchers.kubernetes import names
from elasticdl.launchers.kubernetes.client import Api
from elasticdl.launchers.kubernetes.launcher import KubernetesLauncher
from elasticdl.launchers.kubernetes.pods import Plan
from elasticdl.launchers.kubernetes.retry import persistently

if TYPE_CHECKING:
    from elasticdl.credentials.job_authority import JobAuthority

_TELL_SECONDS = 60.0

log = logging.getLogger(__name__)


def make_launcher(config: JobConfig, on_event: OnEvent, authority: JobAuthority | None) -> Launcher:
    """Return the launcher of a master that runs in a pod.

    Raises:
        ConfigError: This is no pod of a master.
    """
    api = Api.connect()
    master = f"{names.host_of_master(config, api.namespace)}:{config.cluster.master_port}"
    files = Path(names.SETTINGS_DIR, names.MODEL_FILES_KEY)
    model_files = json.loads(files.read_text()) if config.kubernetes.sends_model_zoo else {}
    uid = os.environ[names.OWNER_VARIABLE]
    return KubernetesLauncher(Plan(config, model_files), api, uid, master, on_event, authority)


def tell_end(config: JobConfig, job_dir: Path, code: int) -> None:
    """Leave the last picture with the Job; a master that failed has no successor.

    Another would fail as well. One that was asked to end, or was killed, is to have one.
    """
    if code == process.STOPPED_EXIT_CODE:
        return
    change: dict[str, Any] = {}
    try:
        picture = (job_dir / process.PICTURE_FILE).read_text()
        change["metadata"] = {"annotations": {names.PICTURE_ANNOTATION: picture}}
    except FileNotFoundError:
        log.debug("there is no last picture")
    if code:
        change["spec"] = {"backoffLimit": 0}
    given_up = threading.Event()
    timer = threading.Timer(_TELL_SECONDS, given_up.set)
    timer.daemon = True
    timer.start()
    try:
        api = Api.connect()
        path = api.path("jobs", config.cluster.job_name)
        persistently(
            lambda: api.patch(path, change),
            given_up,
            lambda error: log.warning("the Job cannot be told how it ended yet: %s", error),
        )
    except ElasticdlError as error:
        log.error("the Job was not told how it ended: %s", error)
