"""The secret of a job: whoever knows it may talk to the job's processes."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from elasticdl.errors import ConfigError

_TOKEN_BYTES = 32
_MIN_BYTES = 16


def create_token_file(path: Path) -> bytes:
    """Draw a token and write it to a new file that only its owner may read (mode 0600).

    Raises:
        FileExistsError: The file is there already; a token is never overwritten.
    """
    token = secrets.token_hex(_TOKEN_BYTES).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(token)
    return token


def read_token(path: Path) -> bytes:
    """Read a job's token.

    Raises:
        ConfigError: The file is missing, readable by others, or too short to be a secret.
    """
    try:
        mode = path.stat().st_mode
        token = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--token_file={path}: cannot be read: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(
            f"--token_file={path}: expected mode 0600, found {stat.S_IMODE(mode):04o}; "
            f"others could read the job's secret (chmod 600 {path})"
        )
    if len(token) < _MIN_BYTES:
        raise ConfigError(
            f"--token_file={path}: expected at least {_MIN_BYTES} bytes, found {len(token)}"
        )
    return token
