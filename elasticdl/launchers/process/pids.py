"""A process of this machine under a name that no other process ever has.

A pid is given again after its process is gone. Together with the time at which the process began,
and what the kernel has drawn when the machine was started, it is unique.
"""

from __future__ import annotations

import errno
import json
import os
from typing import NamedTuple

from elasticdl.runtime.proc import boot_id, start_time

_NO_PROCESS = (errno.ESRCH, errno.ENOENT, errno.EINVAL)
"""Nobody has the pid, or a thread has: that is ENOENT, and EINVAL before Linux 6.15."""


class _Ref(NamedTuple):
    pid: int
    start_time: int
    boot: str


def ref_of(pid: int) -> str:
    """Return the name of a process that cannot go away now: a child, or this one."""
    return json.dumps({"pid": pid, "start_time": start_time(pid), "boot": boot_id()})


def parse_ref(ref: str) -> _Ref:
    """Read what `ref_of` returned.

    Raises:
        ValueError: It is something else.
    """
    try:
        fields = json.loads(ref)
        return _Ref(int(fields["pid"]), int(fields["start_time"]), str(fields["boot"]))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"expected a pid, start time and boot, found {ref!r}") from error


def open_same(ref: str) -> int | None:
    """Return a pidfd of the process, or None if it is gone, whoever has its pid now.

    Raises:
        ValueError: `ref` is not of `ref_of`.
    """
    pid, began, boot = parse_ref(ref)
    if boot != boot_id():
        return None  # nothing that had a pid before the machine was started again is there
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in _NO_PROCESS:
            raise
        return None
    # Looked up after the pidfd was opened: if it is right now, the pidfd is of that process.
    if start_time(pid) == began:
        return pidfd
    os.close(pidfd)
    return None
