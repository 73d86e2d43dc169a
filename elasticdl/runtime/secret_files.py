"""Files that only the user of this process may read."""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from pathlib import Path

from elasticdl.errors import ConfigError

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXO
_GROUP = stat.S_IRWXG


def check_secret(path: Path, flag: str) -> None:
    """Make sure that others cannot read or change a file.

    Args:
        path: The file, or a link to it.
        flag: The flag that named it, for the message.

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


def make_private(folder: Path) -> None:
    """Make a folder that only the user can read, or take others' rights from an existing one.

    Root may use a folder of another user, such as one that is mounted into a container.

    Raises:
        OSError: It cannot be made.
        ConfigError: It belongs to another user, or is no folder.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()  # it may have been there before, with any owner and mode
    if found.st_uid != os.geteuid() and os.geteuid() != 0:
        raise ConfigError(
            f"{folder}: expected a folder of your own, found one of {user_name(found.st_uid)}: who "
            "could read and change what is in it; name another one"
        )
    if stat.S_IMODE(found.st_mode) & (_GROUP | _OTHERS):
        folder.chmod(0o700)


def is_own(path: Path) -> bool:
    """Whether a path is a file or folder, no link, that only this user owns and may change."""
    try:
        found = path.lstat()
    except OSError:
        return False
    is_ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
    return is_ours and not stat.S_IMODE(found.st_mode) & _WRITABLE_BY_OTHERS


def user_name(uid: int) -> str:
    """Return the name of a user in words, or the number if it has no name."""
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"


def private_opener(path: str, flags: int) -> int:
    """Open a file like `os.open`, and make it private if it is new or belongs to the user."""
    descriptor = os.open(path, flags, 0o600)
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & (_GROUP | _OTHERS):
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o600)
    return descriptor


def _is_mounted_secret(found: os.stat_result) -> bool:
    """Whether a file has the owner and mode of a Kubernetes Secret in a pod with an `fsGroup`.

    Such a file belongs to root and to that group and has mode 0440; the pod cannot change this.
    Only the processes of the pod are in the group, so the file is still secret.
    """
    is_read_only = stat.S_IMODE(found.st_mode) & _GROUP == stat.S_IRGRP
    is_given = found.st_gid in os.getgroups() and found.st_gid != os.getegid()
    is_ours_by_it = found.st_gid == os.getegid() and found.st_uid != os.geteuid()
    return found.st_uid == 0 and is_read_only and (is_given or is_ours_by_it)
