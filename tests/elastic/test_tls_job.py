"""Whole jobs with `--tls=job` on this machine: TCP is encrypted, and nothing else changes."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from elasticdl import process
from elasticdl._core import PsClient
from elasticdl.credentials.files import TlsFiles, write_private
from elasticdl.errors import AuthenticationError, UnavailableError
from elasticdl.job import Role
from elasticdl.rpc.client import JobClient

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("faults", ["ps,master", "ps+worker,master"])
def test_counts_stay_exact_when_processes_are_killed_under_tls(faults, tmp_path):
    words = ["--seed=7", f"--faults={faults}", f"--dir={tmp_path}", "--tls=job"]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.chaos", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every count is exact" in done.stdout
    for name in ("ca.key", "master.pem", "ps-0.pem", "worker-0.pem", "user.pem"):
        path = tmp_path / "job" / "tls" / name
        assert path.stat().st_mode & 0o777 == 0o600, name


def test_certificates_of_seconds_are_renewed_while_the_job_goes_on(chaos, tmp_path):
    chaos.write_data(tmp_path / "data", chaos.make_ids(3))
    command = chaos.train_command(
        tmp_path / "data",
        tmp_path / "export",
        tmp_path / "job",
        tmp_path / "summary.json",
        tls="job",
        tls_certificate_hours=6 / 3600,
        num_workers=2,
        num_epochs=12,
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = {path.stem: path.read_text() for path in (tmp_path / "job" / "logs").glob("*.log")}
    for name in ("master", "ps-0", "ps-1", "worker-0", "worker-1"):
        assert re.search(rf"the certificate of {name} was renewed", logs[name]), logs[name]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "finished"
    counts = chaos.counts_of(tmp_path / "export")
    assert counts.sum() == 12 * chaos.NUM_RECORDS * chaos.IDS_PER_RECORD
    assert np.all(counts == np.round(counts))


def certificate(folder, authority=None, days=1):
    """Make files as a user's own authority does: one certificate for all roles; `authority` signs.

    Returns:
        The files, and what signs others.
    """
    folder.mkdir()
    now = datetime.now(UTC)

    def build(name, issuer, key, life):
        own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = x509.CertificateBuilder().subject_name(own).issuer_name(issuer or own)
        builder = builder.public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        begin, end = sorted((now - timedelta(days=2), now + life))
        return builder.not_valid_before(begin).not_valid_after(end)

    def pem(found):
        return found.public_bytes(serialization.Encoding.PEM)

    if authority is None:
        key = ec.generate_private_key(ec.SECP256R1())
        ca = build("the user's authority", None, key, timedelta(days=1))
        ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        authority = (key, ca.sign(key, hashes.SHA256()))
    signer, ca = authority
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName(f"{role}.elasticdl") for role in (*Role, "user")]
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    own = build("all roles", ca.subject, key, timedelta(days=days))
    own = own.add_extension(x509.SubjectAlternativeName(names), critical=False)
    own = own.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    files = TlsFiles(folder / "ca.pem", folder / "own.pem", folder / "own.key")
    files.authority.write_bytes(pem(ca))
    files.certificate.write_bytes(pem(own.sign(signer, hashes.SHA256())))
    encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    write_private(files.key, key.private_bytes(*encoding, serialization.NoEncryption()))
    return files, authority


def ask(job, tls):
    """Ask a job's master for its picture, with some certificate."""
    address = json.loads((job.job_dir / process.ADDRESS_FILE).read_text())["address"]
    token = process.read_token(job.job_dir / process.TOKEN_FILE)
    client = JobClient(address, token, attempt_seconds=1, tls=tls)
    try:
        return client.status(give_up_seconds=10, with_members=True)
    finally:
        client.close()


def pull_from(job, address, tls):
    """Connect to a ps replica as a worker does, with some certificate."""
    token = process.read_token(job.job_dir / process.TOKEN_FILE)
    files = tls.as_tuple() if tls else None
    PsClient.connect([address], token, 7, 5.0, whole_job=False, tls=files, unix_sockets=False)


def test_a_job_with_the_users_own_certificates_lets_nobody_else_in(paused_job, tmp_path):
    ours, authority = certificate(tmp_path / "ours")
    expired, _ = certificate(tmp_path / "expired", authority, days=-1)
    foreign, _ = certificate(tmp_path / "foreign")
    of_another_job = TlsFiles(ours.authority, foreign.certificate, foreign.key)
    flags = {
        "tls": "files",
        "tls_ca": ours.authority,
        "tls_cert": ours.certificate,
        "tls_key": ours.key,
    }
    ids = np.arange(2_000)
    with paused_job(ids, "TRAINING", 20, **flags) as job:
        job.wait_for_pause()
        addresses = [member.address for member in ask(job, ours).members if member.address]
        assert len(addresses) == 2
        for address in addresses:
            pull_from(job, address, ours)
        for stranger in (None, expired, foreign, of_another_job):
            with pytest.raises(AuthenticationError):
                ask(job, stranger)
            refused = pytest.raises(
                (AuthenticationError, UnavailableError), match=r"TLS|certificate"
            )
            with refused:
                pull_from(job, addresses[0], stranger)
        summary = job.go_on()
    assert summary["status"] == "finished"
    assert [(e["trained_once"], e["repeated"], e["lost"]) for e in summary["ledger"]] == [
        (len(ids), 0, 0)
    ]
    assert not (job.job_dir / "tls").exists()  # the job makes none of its own
