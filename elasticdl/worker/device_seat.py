"""Chooses the device of its machine that a worker computes on."""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

FOLDER = "devices"


@dataclass(frozen=True, slots=True)
class DeviceLock:
    """A device, and the open file whose lock says that this process has it."""

    device: str | None
    file: int | None = None


def take_seat(devices: Sequence[str], job_dir: Path) -> DeviceLock:
    """Take the first free seat at the devices, and keep it until this process ends.

    Seats are dealt in turn: with two devices, the first and the third worker get the first one. A
    lock marks a seat that is taken. The lock ends with its process, so a successor takes the seat
    of the worker that was lost.

    Args:
        devices: The devices in `--worker_devices`; none: the framework chooses.
        job_dir: The job's folder on this machine.
    """
    if len(set(devices)) < 2:
        return DeviceLock(devices[0] if devices else None)
    folder = job_dir / FOLDER
    folder.mkdir(exist_ok=True)
    for number in itertools.count():
        file = os.open(folder / f"seat-{number}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        # The child must not keep the lock: a process that a framework forks may outlive this one.
        os.register_at_fork(after_in_child=partial(os.close, file))
        return DeviceLock(devices[number % len(devices)], file)
    raise AssertionError("there is always another seat")
