"""Where a job writes to: what is written as a whole must not have something else in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from elasticdl.locations import Location

WRITTEN_WHOLE = ("output", "export_tables")


def check_destinations(places: Mapping[str, Location | None]) -> None:
    """Refuse a destination that lies in the folder of another that is written as a whole.

    Such a folder appears by a change of its name, when all of it is there. What lies in it by then
    would be in the way, or be lost.

    Args:
        places: Where each flag says that the job writes.

    Raises:
        ValueError: Names both flags.
    """
    given = {flag: _parts(place) for flag, place in places.items() if place is not None}
    for whole in WRITTEN_WHOLE:
        outer = given.get(whole)
        for flag, inner in given.items():
            if outer is None or flag == whole or inner[: len(outer)] != outer:
                continue
            raise ValueError(
                f"--{flag}={places[flag]} is in the folder of --{whole}={places[whole]}, which is "
                "written as a whole when training has ended: expected folders that are apart"
            )


def _parts(place: Location) -> tuple[str, ...]:
    if isinstance(place, Path):
        return Path(os.path.abspath(place)).parts
    return tuple(str(place).rstrip("/").split("/"))
