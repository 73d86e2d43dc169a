"""Chooses how a job uses TLS, and makes the certificates of its submitter."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.errors import ConfigError
from elasticdl.runtime.credentials.files import (
    AUTHORITY_FILE,
    AUTHORITY_KEY_FILE,
    FOLDER,
    TlsFiles,
    of_process,
    write_private,
)
from elasticdl.settings.cluster import ClusterSection, TlsMode

if TYPE_CHECKING:
    from elasticdl.runtime.credentials.authority import Authority


def mode_of(cluster: ClusterSection, is_exposed: bool) -> TlsMode:
    """Return the mode in which a job uses TLS.

    Args:
        cluster: The settings of the job.
        is_exposed: Whether other machines can reach its processes.

    Raises:
        ConfigError: The settings would send secrets to any process at the address.
    """
    mode = cluster.tls or "job"
    if mode == "off" and not cluster.insecure:
        where = (
            "records, parameters and the job's secret would cross the network in clear text, and "
            "any machine there"
            if is_exposed
            else "the job's secret would be told to whoever listens at the port of a master that "
            "died, and any other user of this machine"
        )
        raise ConfigError(
            f"--tls=off: {where} could pose as a process of the job. Leave --tls away "
            "(certificates are then made for the job), or accept this with --insecure"
        )
    return mode


def folder_of(cluster: ClusterSection, job_dir: Path) -> Path | None:
    """Return the folder with the certificates of a job on one machine; None: it makes none."""
    return job_dir / FOLDER if mode_of(cluster, is_exposed=False) == "job" else None


def prepare(cluster: ClusterSection, job_dir: Path, is_new: bool = False) -> None:
    """Check the TLS settings of a job, and make an authority for a new job if it needs one.

    A new job replaces an authority in its folder: its maker was killed before the job was whole.

    Raises:
        ConfigError: The settings or the user's own files are not good.
        OSError: The folder cannot be written.
    """
    folder = folder_of(cluster, job_dir)
    files = of_user(cluster)
    if files is not None:
        files.check()
    if folder is not None and (is_new or not (folder / AUTHORITY_FILE).is_file()):
        from elasticdl.runtime.credentials.authority import Authority

        Authority.create(folder, cluster.job_name)


def of_user(cluster: ClusterSection) -> TlsFiles | None:
    """Return the files that the user has named for all processes, or None."""
    if cluster.tls_ca is None or cluster.tls_cert is None or cluster.tls_key is None:
        return None
    return TlsFiles(cluster.tls_ca, cluster.tls_cert, cluster.tls_key)


def of_role(cluster: ClusterSection, folder: Path | None, name: str) -> TlsFiles | None:
    """Return the files of a process, such as `ps-0`, in the folder of certificates.

    A mounted secret is a read-only folder. Its files are copied to a folder in which the process
    can renew them.

    Raises:
        ConfigError: A file is missing, or others may read the key.
    """
    files = of_user(cluster)
    if files is None and folder is not None:
        files = _renewable(of_process(folder, name))
    if files is not None:
        files.check()
    return files


def _renewable(files: TlsFiles) -> TlsFiles:
    folder = files.authority.parent
    if os.access(folder, os.W_OK):
        return files
    own = Path(tempfile.mkdtemp(prefix="elasticdl-tls-"))
    for path in {files.authority, files.certificate}:
        if path.is_file():
            shutil.copyfile(path, own / path.name)
            (own / path.name).chmod(0o600)
    return of_process(own, files.certificate.stem)


def renewal(
    cluster: ClusterSection,
    folder: Path | None,
    files: TlsFiles | None,
    name: str,
    sign: Callable[[bytes], bytes],
) -> AbstractContextManager[object]:
    """Return a context that renews the certificate of a process, if the job makes it."""
    if folder is None or files is None:
        return contextlib.nullcontext()
    from elasticdl.runtime.credentials.renewal import Renewal

    return Renewal(files, name, sign, cluster.tls_certificate_seconds)


def for_user(cluster: ClusterSection, folder: Path | None) -> TlsFiles | None:
    """Return the files of a command that speaks to the master. They are renewed while it runs.

    The owner of the job can read the key of the authority, so the command signs for itself.

    Raises:
        ConfigError: The authority is missing, or the user's own files are not good.
    """
    if folder is None:
        return of_user(cluster)
    from elasticdl.runtime.credentials.authority import Authority

    if not (folder / AUTHORITY_KEY_FILE).is_file():
        raise ConfigError(
            f"{folder / AUTHORITY_KEY_FILE}: expected the key of the job's authority, with which a "
            "certificate is made for this command; was the folder moved?"
        )
    authority = Authority.load(folder)
    try:
        return signed_for_user(cluster, authority, folder)
    except OSError:  # the disk of the job is full or read-only
        own = Path(tempfile.mkdtemp(prefix="elasticdl-tls-"))
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        return signed_for_user(cluster, authority, own)


def signed_for_user(cluster: ClusterSection, authority: Authority, folder: Path) -> TlsFiles:
    """Make and return the files of a command. They are renewed while it runs.

    Raises:
        OSError: A file cannot be written into the folder.
    """
    from elasticdl.runtime.credentials.authority import USER, Identity

    identity = Identity(cluster.job_name, USER)
    life = cluster.tls_certificate_seconds
    for name, content in authority.files_for(identity, life).items():
        write_private(folder / name, content)
    files = of_process(folder, USER)
    context = renewal(
        cluster, folder, files, USER, lambda request: authority.sign(request, identity, life)
    )
    context.__enter__()  # its thread ends with the command
    return files
