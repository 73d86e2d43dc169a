"""Gives each process of a job a folder for temporary files, which others empty.

A killed process leaves its temporary files, such as the functions that TensorFlow has rewritten.
Its folder is emptied when a process of the same name begins, and removed at the job's end.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticdl.errors import ConfigError
from elasticdl.job import Role
from elasticdl.runtime.secret_files import make_private

FOLDER = "tmp"
"""The name of the folder in a job's folder."""

_BEFORE = "ELASTICDL_TMPDIR"  # in a process with a folder of its own: the TMPDIR of the command
_SYSTEM = "/tmp"
_MOST_BYTES = 60  # of a path in which a Unix socket, which has at most 107 bytes, can be made
_DIGITS = 12

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TemporaryFolders:
    """The temporary folders of a job on this machine.

    They are in the job's folder. They are elsewhere if machines share the folder, if its name is
    long, or if the user names another place by TMPDIR.
    """

    job_dir: Path
    is_shared: bool = False

    @property
    def root(self) -> Path:
        """The folder that has all of them."""
        named, own = self._named, self.job_dir / FOLDER
        if not named and not self.is_shared and len(os.fsencode(own)) <= _MOST_BYTES:
            return own
        digest = hashlib.sha256(os.fsencode(self.job_dir)).hexdigest()[:_DIGITS]
        return Path(named or _SYSTEM, f"elasticdl-{digest}")

    def make(self, name: str) -> Mapping[str, str]:
        """Make an empty folder for a process; return the variables that make the process use it.

        If the folder cannot be made, as on a full disk, the process uses the system's folder.
        """
        self.remove(name)
        folder = self.root / name
        try:
            make_private(self.root)
            make_private(folder)
        except (OSError, ConfigError) as error:
            _log.warning("%s has no folder for temporary files: %s", name, error)
            return {}
        return {"TMPDIR": str(folder), _BEFORE: self._named}

    def remove(self, name: str) -> None:
        """Remove the folder of a process that has ended."""
        if self.root.is_symlink():
            return  # below `/tmp` a stranger may have made it
        shutil.rmtree(self.root / name, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are there
            self.root.rmdir()

    def remove_all(self) -> None:
        """Remove the folders of all processes; on a cluster, others of the job may run here."""
        if self.is_shared:
            self.remove(Role.MASTER)
        else:
            shutil.rmtree(self.root, ignore_errors=True)

    @property
    def _named(self) -> str:
        return os.environ.get(_BEFORE, os.environ.get("TMPDIR", ""))
