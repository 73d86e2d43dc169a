"""Whole jobs with `--tls=job` on this machine: TCP is encrypted, and nothing else changes."""

import json
import re
import socket
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from elasticdl._core import PsClient
from elasticdl.errors import AuthenticationError, UnavailableError
from elasticdl.job import Role
from elasticdl.rpc.client import JobClient
from elasticdl.runtime import process
from elasticdl.runtime.credentials.files import TlsFiles, write_private
from tests.elastic.test_hybrid_job import check_counts, hybrid_job
from tests.elastic.visits_job import check_hashes

pytestmark = pytest.mark.timeout(400)

IN_VAIN_SECONDS = 2.0  # for a stranger


@pytest.mark.long
def test_certificates_of_seconds_are_renewed_while_the_job_goes_on(chaos, tmp_path):
    chaos.write_data(tmp_path / "data", chaos.make_ids(3))
    command = chaos.train_command(
        tmp_path / "data",
        tmp_path / "export",
        tmp_path / "job",
        tmp_path / "summary.json",
        tls="job",
        tls_certificate_hours=15 / 3600,
        num_workers=2,
        num_epochs=12,
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = {path.stem: path.read_text() for path in (tmp_path / "job" / "logs").glob("*.log")}
    for name in ("master", "ps-0", "ps-1", "worker-0", "worker-1"):
        assert re.search(rf"the certificate of {name} was renewed", logs[name]), logs[name]
    for name in ("ca.key", "master.pem", "ps-0.pem", "worker-0.pem", "user.pem"):
        path = tmp_path / "job" / "tls" / name
        assert path.stat().st_mode & 0o777 == 0o600, name
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["status"] == "finished"
    counts = chaos.counts_of(tmp_path / "export")
    assert counts.sum() == 12 * chaos.NUM_RECORDS * chaos.IDS_PER_RECORD
    assert np.all(counts == np.round(counts))


def servers_of(worker):
    """Return what a worker process answers to a stranger at each of its ports."""
    ports = {c.laddr.port for c in worker.net_connections("inet") if c.status == "LISTEN"}
    return [name_in_certificate(port) for port in sorted(ports)]


def name_in_certificate(port):
    """Return the role that the certificate of a server names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", port), timeout=100)
    with plain, context.wrap_socket(plain) as secured:
        shown = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True))
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)[0]


def worker_servers(job):
    """Watch a job until its workers listen for the ring and with their copy; return the roles."""
    job.until_trained(500, also=partial(job.has_world_of, 3))
    return [servers_of(worker) for worker in job.processes("worker")]


@pytest.mark.long
def test_workers_of_a_ring_are_lost_under_tls(tmp_path):
    places = ["during reduction", "after update", "compute"]
    faults = [(place, 5) for place in places]
    flags = {"tls": "job", "max_relaunches": 20, "recovery_seconds": 0.3}
    with hybrid_job(tmp_path, num_records=24_000, seconds=0.2, faults=faults, **flags) as job:
        assert worker_servers(job) == [["worker.elasticdl"] * 2] * 3
        job.strike_at_each_place()
        summary = job.finish()
    check_counts(job, summary)
    check_hashes(job)
    own = {path.name for path in (job.job_dir / "tls").glob("worker-*.pem")}
    assert len(own) > 3  # one for each process that was started


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


def ask(job, tls, attempt_seconds=60):
    """Ask a job's master for its picture, with some certificate."""
    address = json.loads((job.job_dir / process.ADDRESS_FILE).read_text())["address"]
    token = process.read_token(job.job_dir / process.TOKEN_FILE)
    client = JobClient(address, token, attempt_seconds=attempt_seconds, tls=tls)
    try:
        return client.status(give_up_seconds=10, with_members=True)
    finally:
        client.close()


def pull_from(job, address, tls, seconds=60.0):
    """Connect to a ps replica as a worker does, with some certificate."""
    token = process.read_token(job.job_dir / process.TOKEN_FILE)
    files = tls.as_tuple() if tls else None
    PsClient.connect([address], token, 7, seconds, whole_job=False, tls=files, unix_sockets=False)


@pytest.mark.long
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
                ask(job, stranger, attempt_seconds=IN_VAIN_SECONDS)
            refused = pytest.raises(
                (AuthenticationError, UnavailableError), match=r"TLS|certificate"
            )
            with refused:
                pull_from(job, addresses[0], stranger, seconds=IN_VAIN_SECONDS)
        summary = job.go_on()
    assert summary["status"] == "finished"
    assert [(e["trained_once"], e["repeated"], e["lost"]) for e in summary["ledger"]] == [
        (len(ids), 0, 0)
    ]
    assert not (job.job_dir / "tls").exists()  # the job makes none of its own
