"""Which of the devices of its machine a worker computes on."""

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
class DeviceSeat:
    """A device, and the open file whose lock says that this process has it."""

    device: str | None
    file: int | None = None


def take_seat(devices: Sequence[str], job_dir: Path) -> DeviceSeat:
    """Take the first free seat at the devices, and keep it until this process ends.

    Seats are dealt in turn: of two devices the first and third worker have the first one. A lock
    marks one that is taken. It goes with its process, however that ends, so a successor sits down
    where the lost worker was.

    Args:
        devices: What `--worker_devices` names; none: the framework chooses.
        job_dir: The job's folder on this machine.
    """
    if len(set(devices)) < 2:
        return DeviceSeat(devices[0] if devices else None)
    folder = job_dir / FOLDER
    folder.mkdir(exist_ok=True)
    for number in itertools.count():
        file = os.open(folder / f"seat-{number}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        # A process that a framework forks off may live a little longer than this one.
        os.register_at_fork(after_in_child=partial(os.close, file))
        return DeviceSeat(devices[number % len(devices)], file)
    raise AssertionError("there is always another seat")
