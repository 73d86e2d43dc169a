"""Reads `--worker_devices`: the devices on which the workers of a machine compute."""

from __future__ import annotations

import re

_DEVICE = re.compile(r"cpu|cuda:(0|[1-9]\d{0,3})")


def read(value: object) -> object:
    """Return a list of devices in its stored form, with commas alone.

    Raises:
        ValueError: A word is not a device.
    """
    if not isinstance(value, str):
        return value
    for name in names(value):
        if not _DEVICE.fullmatch(name):
            raise ValueError(
                "--worker_devices: expected cpu, cuda:N, or several of them with commas, as "
                f"cuda:0,cuda:1, found {name!r} in {value!r}"
            )
    return ",".join(names(value))


def names(value: str) -> tuple[str, ...]:
    """Return the devices in a list."""
    return tuple(part.strip() for part in value.split(",")) if value else ()
