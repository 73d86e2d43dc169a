"""Files that nobody but this process' user may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from elasticdl.errors import ConfigError

_OTHERS = stat.S_IRWXO
_GROUP = stat.S_IRWXG


def check_secret(path: Path, flag: str) -> None:
    """Make sure that others cannot read or change a file.

    Args:
        path: The file, or a link to it.
        flag: By which it was named, for the message.

    Raises:
        OSError: There is no such file.
        ConfigError: Others can read it.
    """
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS or (mode & _GROUP and not _is_mounted_secret(found)):
        raise ConfigError(
            f"{flag}={path}: expected mode 0600, found {mode:04o}: others can read the "
            f"job's secret (chmod 600 {path})"
        )


def _is_mounted_secret(found: os.stat_result) -> bool:
    """Whether a file is as Kubernetes mounts a Secret into a pod that has an `fsGroup`.

    It belongs to root and to that group, with mode 0440, and the pod cannot change that. Only the
    pod's own processes are in the group: it is not the group of a user, but given to them beside.
    """
    is_read_only = stat.S_IMODE(found.st_mode) & _GROUP == stat.S_IRGRP
    is_given = found.st_gid in os.getgroups() and found.st_gid != os.getegid()
    is_ours_by_it = found.st_gid == os.getegid() and found.st_uid != os.geteuid()
    return found.st_uid == 0 and is_read_only and (is_given or is_ours_by_it)
