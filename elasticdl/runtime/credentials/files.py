"""The files by which a process shows who it is, and knows the others of its job."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from elasticdl.errors import ConfigError

AUTHORITY_FILE = "ca.pem"
AUTHORITY_KEY_FILE = "ca.key"
"""Only the master (and who submits the job) has this one."""

FOLDER = "tls"
"""Where they are in the folder of a job."""

Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of one process, in PEM. One file may hold certificate and key.

    authority: certificates of those who sign the certificates of this job.
    certificate: this process's own, and those between it and the authority.
    key: its private key, which only its owner may read.
    """

    authority: Path
    certificate: Path
    key: Path

    def as_tuple(self) -> tuple[Path, Path, Path]:
        """Return them in the order in which `elasticdl._core` takes them."""
        return (self.authority, self.certificate, self.key)

    def stamp(self) -> Stamp:
        """Return what is another one when a file has changed.

        Raises:
            ConfigError: One is missing.
        """
        return tuple(_stamp(path) for path in self.as_tuple())

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return authority, certificate and key, of one moment.

        Raises:
            ConfigError: One cannot be read.
        """
        if self.certificate == self.key:  # renewed at once: read at once
            both = _read(self.certificate)
            return _read(self.authority), both, both
        return _read(self.authority), _read(self.certificate), _read(self.key)

    def check(self) -> None:
        """Make sure that the files are there and the key is secret.

        The group may read the key, as it does where a cluster mounts it for a process that is not
        root.

        Raises:
            ConfigError: Not so; names the file.
        """
        self.read()
        mode = self.key.stat().st_mode & 0o777
        if mode & 0o007:
            raise ConfigError(
                f"{self.key}: expected a key that only its owner reads (mode 0600), found "
                f"{mode:04o} (chmod 600 {self.key})"
            )


def of_process(folder: Path, name: str) -> TlsFiles:
    """Return where the files of a process are in the folder of its job, such as of `ps-0`."""
    own = folder / f"{name}.pem"
    return TlsFiles(folder / AUTHORITY_FILE, own, own)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read; it is whole, or as it was before.

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
        partial.unlink(missing_ok=True)  # of a disk that is full, what was written
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
