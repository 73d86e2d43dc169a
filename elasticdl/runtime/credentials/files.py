"""The files with which a process proves its identity and checks its peers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from elasticdl.errors import ConfigError

AUTHORITY_FILE = "ca.pem"
AUTHORITY_KEY_FILE = "ca.key"
"""Only the master and the user who submits the job have this file."""

FOLDER = "tls"
"""The folder of these files in the folder of a job."""

Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of one process, in PEM. One file may hold certificate and key.

    authority: Certificates of the authorities that sign for this job.
    certificate: The certificate of this process, and any between it and the authority.
    key: The private key of this process, which only its owner may read.
    """

    authority: Path
    certificate: Path
    key: Path

    def as_tuple(self) -> tuple[Path, Path, Path]:
        """Return the files in the order of the arguments in `elasticdl._core`."""
        return (self.authority, self.certificate, self.key)

    def stamp(self) -> Stamp:
        """Return a value that changes when a file changes.

        Raises:
            ConfigError: A file is missing.
        """
        return tuple(_stamp(path) for path in self.as_tuple())

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return the contents of authority, certificate and key, which fit together.

        Raises:
            ConfigError: A file cannot be read.
        """
        if self.certificate == self.key:
            # A renewal replaces the one file at once, so one read gets a matching pair.
            both = _read(self.certificate)
            return _read(self.authority), both, both
        return _read(self.authority), _read(self.certificate), _read(self.key)

    def check(self) -> None:
        """Make sure that the files are there and the key is secret.

        The group may read the key: a cluster mounts it so for a process that is not root.

        Raises:
            ConfigError: A file is missing, or others may read the key. The message names it.
        """
        self.read()
        mode = self.key.stat().st_mode & 0o777
        if mode & 0o007:
            raise ConfigError(
                f"{self.key}: expected a key that only its owner reads (mode 0600), found "
                f"{mode:04o} (chmod 600 {self.key})"
            )


def of_process(folder: Path, name: str) -> TlsFiles:
    """Return the paths of the files of a process, such as `ps-0`, in the folder of its job."""
    own = folder / f"{name}.pem"
    return TlsFiles(folder / AUTHORITY_FILE, own, own)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read. A failure leaves the old file.

    Raises:
        OSError: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)  # a full disk leaves a part of it
        raise


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{path}: expected a file of TLS in PEM: {error.strerror}") from error
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: expected a file of TLS in PEM: {error.strerror}") from error
