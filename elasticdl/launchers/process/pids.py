"""Names a process of this machine so that no other process ever has the same name.

A pid is used again after its process is gone. The name has the pid, the time at which the process
began, and the kernel's random id of the boot. Together they are unique.
"""

from __future__ import annotations

import errno
import json
import os
from typing import NamedTuple

from elasticdl.runtime.proc import boot_id, start_time

_NO_PROCESS = (errno.ESRCH, errno.ENOENT, errno.EINVAL)
"""No process has the pid, or a thread has it: that is ENOENT, and EINVAL before Linux 6.15."""


class _Ref(NamedTuple):
    pid: int
    start_time: int
    boot: str


def ref_of(pid: int) -> str:
    """Return the name of a process that cannot end unnoticed: a child, or this process."""
    return json.dumps({"pid": pid, "start_time": start_time(pid), "boot": boot_id()})


def parse_ref(ref: str) -> _Ref:
    """Parse the result of `ref_of`.

    Raises:
        ValueError: The text has another form.
    """
    try:
        fields = json.loads(ref)
        return _Ref(int(fields["pid"]), int(fields["start_time"]), str(fields["boot"]))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"expected a pid, start time and boot, found {ref!r}") from error


def open_same(ref: str) -> int | None:
    """Return a pidfd of the process; None if it is gone, even if another has its pid.

    Raises:
        ValueError: `ref` is not a result of `ref_of`.
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
    # The start time is read after the pidfd is open: if it matches, the pidfd is of that process.
    if start_time(pid) == began:
        return pidfd
    os.close(pidfd)
    return None
