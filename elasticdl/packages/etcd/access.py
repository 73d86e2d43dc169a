"""The credentials of a master and an etcd, which `--state` names after its `?`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import parse_qsl

from elasticdl.errors import ConfigError
from elasticdl.runtime.addresses import is_loopback
from elasticdl.runtime.secret_files import check_secret


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Files of credentials; they are read for each connection.

    ca: The certificate of the authority that signs etcd's certificate, PEM; with it TLS is used.
    cert, key: This process's own certificate, if etcd asks for one.
    user_file: A file with one line, USER:PASSWORD, which no other user may read.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    user_file: Path | None = None

    @classmethod
    def of_query(cls, query: str) -> EtcdAccess:
        """Parse the part after `?` in `--state=etcd://...`.

        Raises:
            ConfigError: A name is unknown, or a name needs another one.
        """
        names = [field.name for field in fields(cls)]
        found = parse_qsl(query, keep_blank_values=True)
        for name, value in found:
            if name not in names or not value.startswith("/"):
                raise ConfigError(
                    f"--state: expected {', '.join(f'{name}=/PATH' for name in names)} with & "
                    f"between them after the ?, found {name} and another value"
                )
        if len(dict(found)) != len(found):
            raise ConfigError("--state: expected each name once after the ?, found one twice")
        access = cls(**{name: Path(value) for name, value in found})
        if (access.cert is None) != (access.key is None):
            raise ConfigError("--state: cert and key need each other")
        if access.ca is None and found:
            raise ConfigError(
                "--state: expected ca=/PATH too, who signs the certificate of etcd: without it a "
                "password would be told to whoever listens there"
            )
        return access

    def tls(self) -> tuple[bytes | None, bytes | None, bytes | None] | None:
        """Return the authority, the key and the certificate in PEM; None if TLS is not used.

        Raises:
            ConfigError: A file cannot be read, or other users may read a secret file.
        """
        if self.ca is None:
            return None
        if self.key is not None:
            _check(self.key)
        return _read(self.ca), _read(self.key), _read(self.cert)

    def user(self) -> tuple[str, str] | None:
        """Return the name and the password of the etcd user, if there is one.

        Raises:
            ConfigError: The file cannot be read, other users may read it, or it has another form.
        """
        if self.user_file is None:
            return None
        _check(self.user_file)
        text = (_read(self.user_file) or b"").decode(errors="replace").strip("\n")
        name, colon, password = text.partition(":")
        if not (name and colon and password) or "\n" in text:
            raise ConfigError(f"--state: {self.user_file}: expected one line, USER:PASSWORD")
        return name, password

    def notes(self, endpoints: Sequence[str]) -> list[str]:
        """Return what a user should know, one sentence each."""
        hosts = [endpoint.rpartition(":")[0].strip("[]") for endpoint in endpoints]
        if self.ca is not None or all(map(is_loopback, hosts)):
            return []
        return [
            "--state=etcd://...: what the job must not forget crosses the network in clear text, "
            "and whoever reaches etcd can change it; ?ca=/PATH speaks TLS with an etcd that has a "
            "certificate, and &user_file=/PATH names a user of it"
        ]


def _check(path: Path) -> None:
    try:
        check_secret(path, "--state")
    except OSError as error:
        raise ConfigError(f"--state: {path}: {error.strerror}") from error


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"--state: {path}: {error.strerror}") from error
