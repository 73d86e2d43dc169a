"""A certificate is renewed before it ends, whatever fails meanwhile."""

import threading

import pytest

from elasticdl.config import ClusterSection
from elasticdl.errors import ConfigError, UnavailableError
from elasticdl.job import Role
from elasticdl.runtime.credentials import renewal
from elasticdl.runtime.credentials.authority import Authority, Identity, expiry
from elasticdl.runtime.credentials.job import folder_of, mode_of, of_role, prepare
from elasticdl.runtime.credentials.renewal import Renewal, pause_seconds

WORKER = Identity("ctr", Role.WORKER, 3)


@pytest.mark.parametrize(
    ("now", "pause"), [(1000.0, 60.0), (1050.0, 10.0), (1060.0, 0.0), (5000.0, 0.0), (-5e5, 60.0)]
)
def test_certificate_is_due_when_a_third_of_its_life_is_left(now, pause):
    assert pause_seconds(now, expires=1090.0, life_seconds=90.0) == pause


def test_certificate_is_renewed_again_and_again_and_after_failures(tmp_path):
    authority = Authority.create(tmp_path, "ctr")
    files = authority.issue(tmp_path, WORKER, life_seconds=0.3)
    first, calls, enough = expiry(files.certificate.read_bytes()), [], threading.Event()

    def sign(request):
        calls.append(request)
        if len(calls) == 1:
            raise UnavailableError("the master is away")
        if len(calls) == 4:
            enough.set()
        return authority.sign(request, WORKER, 0.3 if len(calls) < 4 else 3600)

    with Renewal(files, "worker-3", sign, life_seconds=0.3):
        assert enough.wait(30)
    assert len(set(calls)) == len(calls)  # each with a key of its own
    assert expiry(files.certificate.read_bytes()) >= first


def test_a_clock_that_is_set_has_the_certificate_renewed_at_once(tmp_path, monkeypatch):
    authority, renewed = Authority.create(tmp_path, "ctr"), threading.Event()
    files = authority.issue(tmp_path, WORKER, life_seconds=3600)
    clocks = iter([0.0])
    monkeypatch.setattr(renewal, "_FIRST_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(renewal, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(renewal, "_clock", lambda: next(clocks, 86_400.0))

    def sign(request):
        renewed.set()
        return authority.sign(request, WORKER, 3600)

    with Renewal(files, "worker-3", sign, life_seconds=3600):
        assert renewed.wait(30)


@pytest.mark.parametrize(
    ("is_exposed", "words"), [(True, "in clear text"), (False, "any other user of this machine")]
)
def test_tls_is_the_default_and_off_has_to_be_accepted(is_exposed, words):
    assert mode_of(ClusterSection(), is_exposed) == "job"
    with pytest.raises(ConfigError, match=rf"{words}.*--insecure"):
        mode_of(ClusterSection(tls="off"), is_exposed)
    assert mode_of(ClusterSection(tls="off", insecure=True), is_exposed) == "off"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tls": "files", "tls_ca": "ca.pem"}, "--tls=files needs --tls_cert, --tls_key too"),
        ({"tls_ca": "ca.pem"}, "need --tls=files"),
        ({"insecure": True}, "--insecure accepts --tls=off, found --tls=job"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ClusterSection(**settings)


def test_a_new_job_gets_its_authority_once(tmp_path):
    cluster = ClusterSection(tls="job")
    prepare(cluster, tmp_path)
    folder = folder_of(cluster, tmp_path)
    before = (folder / "ca.pem").read_bytes()
    prepare(cluster, tmp_path)
    assert (folder / "ca.pem").read_bytes() == before
    assert folder_of(ClusterSection(tls="off", insecure=True), tmp_path) is None


def test_files_of_the_user_are_those_of_every_process(tmp_path):
    authority = Authority.create(tmp_path, "theirs")
    files = authority.issue(tmp_path, WORKER, 3600)
    cluster = ClusterSection(
        tls="files", tls_ca=files.authority, tls_cert=files.certificate, tls_key=files.key
    )
    assert of_role(cluster, None, "ps-0") == files
    files.key.unlink()
    with pytest.raises(ConfigError, match=r"worker-3\.pem: expected a file of TLS"):
        prepare(cluster, tmp_path)
