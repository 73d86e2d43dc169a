"""Certificates: what they say, for how long, and who gets one."""

import stat
import time
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from elasticdl.errors import AuthenticationError, ConfigError
from elasticdl.job import Role
from elasticdl.runtime.credentials.authority import USER, Authority, Identity, expiry, make_request
from elasticdl.runtime.credentials.files import AUTHORITY_FILE, AUTHORITY_KEY_FILE
from elasticdl.runtime.credentials.job_authority import JobAuthority

LIFE_SECONDS = 3600


@pytest.fixture
def authority(tmp_path):
    return Authority.create(tmp_path / "tls", "ctr")


def extension(pem, kind):
    certificate = x509.load_pem_x509_certificate(pem)
    return certificate.extensions.get_extension_for_class(kind).value


@pytest.mark.parametrize("role", [*Role, USER])
def test_certificate_names_its_role_and_only_servers_may_serve(authority, role):
    pem = authority.make(Identity("ctr", role, 3), LIFE_SECONDS)
    names = extension(pem, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == [f"{role}.elasticdl"]
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [
        f"elasticdl://ctr/{role}/3"
    ]
    purposes = extension(pem, x509.ExtendedKeyUsage)
    assert (ExtendedKeyUsageOID.SERVER_AUTH in purposes) == (role != USER)
    assert ExtendedKeyUsageOID.CLIENT_AUTH in purposes
    assert not extension(pem, x509.BasicConstraints).ca


def test_certificate_is_good_for_its_life_and_for_clocks_that_differ_by_days(authority):
    pem = authority.make(Identity("ctr", Role.PS), LIFE_SECONDS)
    assert expiry(pem) == pytest.approx(time.time() + LIFE_SECONDS, abs=30)
    for each in (pem, authority.pem):
        signed = x509.load_pem_x509_certificate(each)
        assert signed.not_valid_before_utc < datetime.now(UTC) - timedelta(days=29)
        assert signed.not_valid_after_utc > datetime.now(UTC) + timedelta(days=3)


def test_files_are_readable_by_their_owner_alone(authority, tmp_path):
    folder = tmp_path / "tls"
    files = authority.issue(folder, Identity("ctr", Role.PS, 1), LIFE_SECONDS)
    assert files.certificate.name == "ps-1.pem"
    files.check()
    for path in (folder / AUTHORITY_KEY_FILE, files.key):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files.key.chmod(0o604)
    with pytest.raises(ConfigError, match=r"ps-1.pem: expected a key that only its owner reads"):
        files.check()


def test_authority_is_taken_up_again(authority, tmp_path):
    again = Authority.load(tmp_path / "tls")
    root = x509.load_pem_x509_certificate((tmp_path / "tls" / AUTHORITY_FILE).read_bytes())
    signed = x509.load_pem_x509_certificate(again.make(Identity("ctr", Role.PS), LIFE_SECONDS))
    signed.verify_directly_issued_by(root)
    (tmp_path / "tls" / AUTHORITY_KEY_FILE).write_text("no key")
    with pytest.raises(ConfigError, match=r"ca.key: expected the authority of a job"):
        Authority.load(tmp_path / "tls")


def test_of_a_request_only_the_key_is_taken(authority):
    key, request = make_request("master")
    pem = authority.sign(request, Identity("ctr", Role.WORKER, 7), LIFE_SECONDS)
    names = extension(pem, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.DNSName) == ["worker.elasticdl"]
    asked = x509.load_pem_x509_csr(request).public_key()
    assert x509.load_pem_x509_certificate(pem).public_key() == asked
    assert b"PRIVATE KEY" in key
    assert b"PRIVATE KEY" not in pem


@pytest.mark.parametrize("request_", [b"", b"nonsense", b"-----BEGIN CERTIFICATE REQUEST-----\n"])
def test_what_is_no_request_is_refused(authority, request_):
    with pytest.raises(AuthenticationError, match="expected a request for a certificate"):
        authority.sign(request_, Identity("ctr", Role.PS), LIFE_SECONDS)


def test_master_renews_whom_the_certificate_names_and_nobody_else(authority, tmp_path):
    job = JobAuthority(authority, tmp_path, "ctr", LIFE_SECONDS)
    _, request = make_request("anything")
    pem = job.renew(["elasticdl://ctr/ps/1"], request)
    names = extension(pem, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["elasticdl://ctr/ps/1"]
    for uris in (
        [],
        ["elasticdl://other/ps/1"],
        ["elasticdl://ctr/emperor/1"],
        ["elasticdl://ctr/ps"],
        ["https://ctr/ps/1"],
        ["elasticdl://ctr/ps/1", "elasticdl://ctr/master/0"],
    ):
        with pytest.raises(AuthenticationError):
            job.renew(uris, request)


def test_identity_survives_any_name_of_a_job():
    for job in ("ctr", "a/b c", "ctr.eu-1"):
        identity = Identity(job, Role.WORKER, 12)
        assert Identity.of_uri(identity.uri) == identity
