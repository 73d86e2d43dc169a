"""Finds the credentials with which a command talks to a job's master on a cluster.

The credentials are a token and a certificate. Both are in Secrets, so whoever may read the Secrets
of a namespace may command the jobs in it.
"""

from __future__ import annotations

import atexit
import base64
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from elasticdl.config import ClusterSection, JobConfig
from elasticdl.errors import LaunchError
from elasticdl.packages.kubernetes import names
from elasticdl.packages.kubernetes.client import Api, ApiError
from elasticdl.packages.kubernetes.settings import KubernetesSection
from elasticdl.runtime.credentials import job as credentials
from elasticdl.runtime.credentials.files import (
    AUTHORITY_FILE,
    AUTHORITY_KEY_FILE,
    TlsFiles,
    write_private,
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The token and the certificate that one master accepts."""

    token: bytes
    tls: TlsFiles | None


class Access:
    """Finds the credentials of a job; a certificate is made once, and renewed later."""

    def __init__(self, api: Api, job_name: str) -> None:
        self._api = api
        self._job_name = job_name
        self._found: Credentials | None = None

    def find(self) -> Credentials | None:
        """Return the credentials; None before the job's master has made them, or after its end.

        Raises:
            LaunchError: The credentials may not be read, or are not where the job's settings say.
        """
        secret = self._secret(self._job_name)
        if secret is None or names.TOKEN_KEY not in secret:  # or of something else
            return None
        token = bytes.fromhex(secret[names.TOKEN_KEY].decode())
        if self._found is None or self._found.token != token:  # another job of this name
            self._found = self._complete(token)
        return self._found

    def _complete(self, token: bytes) -> Credentials | None:
        config = self._config()
        if config is None:
            return None
        match credentials.mode_of(config.cluster, is_exposed=True):
            case "job":
                signed = self._signed(config.cluster)
                return None if signed is None else Credentials(token, signed)
            case "files":
                return Credentials(token, self._of_user(config))
            case "off":
                return Credentials(token, None)

    def _signed(self, cluster: ClusterSection) -> TlsFiles | None:
        """Sign a certificate for this command. The authority's key stays in memory."""
        from elasticdl.runtime.credentials.authority import Authority

        name = names.authority_of(self._job_name)
        secret = self._secret(name)
        if secret is None:
            return None
        authority = Authority.parse(
            secret[AUTHORITY_FILE], secret[AUTHORITY_KEY_FILE], f"Secret {name}"
        )
        return credentials.signed_for_user(cluster, authority, _own_folder())

    def _of_user(self, config: JobConfig) -> TlsFiles:
        """Find the user's own files: in the Secret that the pods mount, or here."""
        files = credentials.of_user(config.cluster)
        assert files is not None
        folder = _own_folder()
        found = TlsFiles(*(self._local(config, path, folder) for path in files.as_tuple()))
        found.check()
        return found

    def _local(self, config: JobConfig, path: Path, folder: Path) -> Path:
        for volume in config.of(KubernetesSection).volumes():
            if volume.secret_name and path.parent == Path(volume.mount_path):
                content = self._secret(volume.secret_name) or {}
                if path.name not in content:
                    raise LaunchError(
                        f"{path}: expected the key {path.name} in the Secret {volume.secret_name}, "
                        f"found {', '.join(content) or 'no such Secret'}"
                    )
                # Two Secrets may have the same keys, so each gets its own folder.
                place = folder / PurePosixPath(volume.mount_path).relative_to("/") / path.name
                place.parent.mkdir(parents=True, exist_ok=True)
                write_private(place, content[path.name])
                return place
        if path.is_file():
            return path
        raise LaunchError(
            f"{path}: the job has this file of TLS on a volume of its pods, and this machine has "
            "none there: copy it to the same place here, or give the pods a Secret with the files "
            f"(--volume=secret_name=NAME,mount_path={path.parent}), which commands can read too"
        )

    def _config(self) -> JobConfig | None:
        path = self._api.path("configmaps", self._job_name)
        try:
            text = self._api.get(path)["data"][names.CONFIG_KEY]
        except ApiError as error:
            if error.code == 404:
                return None
            if error.code != 403:
                raise
            raise LaunchError(
                f"the settings of {self._job_name} cannot be read: {error}"
            ) from error
        try:
            return JobConfig.model_validate_json(text)
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False)[0]
            raise LaunchError(
                f"the ConfigMap {self._job_name}: expected the settings of a job, as this version "
                f"of elasticdl writes them: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
            ) from error

    def _secret(self, name: str) -> dict[str, bytes] | None:
        try:
            found = self._api.get(self._api.path("secrets", name))
        except ApiError as error:
            if error.code == 404:
                return None
            if error.code == 403:
                raise LaunchError(
                    f"the master of {self._job_name} lets nobody in without what is in the Secret "
                    f"{name}: expected the right to get secrets in the namespace: {error}"
                ) from error
            raise
        return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}


def _own_folder() -> Path:
    """Make a folder of this command that is removed when the command ends."""
    folder = Path(tempfile.mkdtemp(prefix="elasticdl-tls-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
