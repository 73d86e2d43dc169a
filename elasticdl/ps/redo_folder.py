"""Which redo logs of other machines count.

A log counts on the machine that has written it, until that is started anew (`boot`, which the store
writes). On another machine, as when the one of the replica is lost, it counts if the system which
writes the master's journal has run since the log was begun: then the log cannot be ahead of the
journal. The folder says which system that was (`journal`).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_BOOT, _JOURNAL = "boot", "journal"
_OWN_BOOT = Path("/proc/sys/kernel/random/boot_id")


def take_over(folder: str, journal_system: str) -> None:
    """Have the log of another machine count on this one, if it may.

    Args:
        folder: Of the log, which perhaps is not there.
        journal_system: Which system writes the master's journal now; "": it is not known.
    """
    with contextlib.suppress(OSError):  # then it does not count
        if journal_system and Path(folder, _JOURNAL).read_text() == journal_system:
            Path(folder, _BOOT).write_text(_OWN_BOOT.read_text())


def note(folder: str, journal_system: str) -> None:
    """Say with which system the log goes on from here."""
    with contextlib.suppress(OSError):
        Path(folder, _JOURNAL).write_text(journal_system)
