"""Decides which redo logs of other machines are valid.

A log is valid on the machine that has written it, until that machine is started anew (the store
writes the file `boot`). On another machine, for example after the replica's machine was lost, a log
is valid in one case: the system that writes the master's journal has run since the log was begun.
Then the log cannot be ahead of the journal. The file `journal` in the log's folder names that
system.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_BOOT, _JOURNAL = "boot", "journal"
_OWN_BOOT = Path("/proc/sys/kernel/random/boot_id")


def take_over(folder: str, journal_system: str) -> None:
    """Make the log of another machine valid on this machine, if that is allowed.

    Args:
        folder: The folder of the log; it may not exist.
        journal_system: The system that writes the master's journal now; "": unknown.
    """
    with contextlib.suppress(OSError):  # then it does not count
        if journal_system and Path(folder, _JOURNAL).read_text() == journal_system:
            Path(folder, _BOOT).write_text(_OWN_BOOT.read_text())


def note(folder: str, journal_system: str) -> None:
    """Write which system writes the journal while the log goes on."""
    with contextlib.suppress(OSError):
        Path(folder, _JOURNAL).write_text(journal_system)
