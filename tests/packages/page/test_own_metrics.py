"""A process serves its metrics by TLS, with the certificate that it has at the time."""

import http.client
import socket
import ssl

import pytest

from elasticdl.job import Label, Role, Usage
from elasticdl.runtime.credentials.authority import Authority, Identity

pytest.importorskip("aiohttp", reason="metrics need elasticdl-train[dashboard]")
pytest.importorskip("prometheus_client", reason="metrics need elasticdl-train[dashboard]")

from elasticdl.packages.page.own_metrics import OwnMetrics, serving_at

USAGE = Usage(0.0, Label.TRAIN, {"train": 7.0}, 0.0, 0, 0, 0)
ASK = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nConnection: close\r\n"
ACCEPTS = ("", "Accept: text/plain; version=x\r\n")


@pytest.fixture
def files(tmp_path):
    """The files of a worker, as its job has made them."""
    return Authority.create(tmp_path, "job").issue(tmp_path, Identity("job", Role.WORKER, 3), 3600)


@pytest.fixture
def port(files):
    metrics = OwnMetrics(lambda: USAGE)
    with serving_at(metrics, "t", "127.0.0.1", 0, files.as_tuple()[1:]) as port:
        yield port


def secured(port, files, name):
    """Return a connection to one who proves to be of the job, and of a role."""
    context = ssl.create_default_context(cafile=files.authority)
    plain = socket.create_connection(("127.0.0.1", port), timeout=100)
    return context.wrap_socket(plain, server_hostname=name)


@pytest.mark.parametrize("accept", ACCEPTS)
def test_who_trusts_the_authority_and_knows_the_role_is_answered(port, files, accept):
    with secured(port, files, "worker.elasticdl") as connection:
        connection.sendall(ASK + f"{accept}\r\n".encode())
        answer = b""
        while some := connection.recv(65536):  # up to the end of the connection
            answer += some
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'elasticdl_own_seconds_total{label="train"} 7.0' in answer


def test_a_pod_of_another_role_is_not_taken_for_this_one(port, files):
    with pytest.raises(ssl.SSLCertVerificationError, match=r"ps\.elasticdl"):
        secured(port, files, "ps.elasticdl")


def test_certificate_that_was_renewed_is_shown(port, files, tmp_path):
    with secured(port, files, "worker.elasticdl") as connection:
        before = connection.getpeercert(binary_form=True)
    Authority.load(tmp_path).issue(tmp_path, Identity("job", Role.WORKER, 3), 60)
    with secured(port, files, "worker.elasticdl") as connection:
        assert connection.getpeercert(binary_form=True) != before


def test_clear_text_is_not_answered(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=100)
    connection.request("GET", "/metrics", headers={"Authorization": "Bearer t"})
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        connection.getresponse()
    connection.close()
