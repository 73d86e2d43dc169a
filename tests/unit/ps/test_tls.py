"""What goes over the wire between a worker and a ps replica, with TLS and without."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from elasticdl._core import PsClient, PsServer, Store
from elasticdl.backends.base import (
    Initializer,
    ModelDescription,
    OptimizerSpec,
    TableDescription,
)
from elasticdl.errors import AuthenticationError
from elasticdl.job import Role
from elasticdl.runtime.credentials.authority import Authority, Identity
from tests.unit.recording_relay import RecordingRelay

LONG_AGO = -4 * 86_400.0  # more than a clock may be ahead of others
TOKEN = b"a secret of thirty-two bytes ...."
SENTINEL = np.float32(1234.5678)
NOTHING = np.zeros(0, np.float32)
ROWS = TableDescription(
    "t", 4, Initializer("constant", {"value": float(SENTINEL)}), OptimizerSpec("sgd")
)
MODEL = json.dumps(
    asdict(ModelDescription((ROWS,), dense=(), state=(), optimizer=OptimizerSpec("sgd"), seed=5))
)


@pytest.fixture
def job(tmp_path):
    """Return what makes the files of a process."""
    authority = Authority.create(tmp_path, "ctr")

    def issue(role, index=0, life_seconds=3600):
        return authority.issue(tmp_path, Identity("ctr", role, index), life_seconds).as_tuple()

    return issue


def capture(server_tls, client_tls):
    """Pull a row and push a gradient through a relay; return the row and what the relay heard."""
    server = PsServer(Store(), "127.0.0.1", 0, TOKEN, tls=server_tls)
    relay = RecordingRelay(server.address)
    try:
        client = PsClient.connect([relay.address], TOKEN, 0, 30, tls=client_tls, unix_sockets=False)
        client.declare(MODEL, NOTHING, NOTHING)
        assert client.begin_task(1, 1) == 0
        pulled = client.pull([(0, np.arange(8))], training=True)
        grads = [np.full((8, 4), SENTINEL, np.float32)]
        client.push(pulled, grads, NOTHING, NOTHING, 1.0, 1, 1, 0, 8)
        return pulled.rows[0], relay.heard
    finally:
        del client
        server.stop()
        relay.close()


def test_capture_shows_no_row_with_tls_and_shows_it_without(job):
    sentinel = np.full(4, SENTINEL, np.float32).tobytes()
    row, heard = capture(None, None)
    assert row.tobytes().startswith(sentinel)
    assert heard.count(sentinel) >= 2  # pulled and pushed: so the check can fail
    assert b"EDLW" in heard
    row, heard = capture(job(Role.PS), job(Role.WORKER))
    assert row.tobytes().startswith(sentinel)
    assert len(heard) > 1000
    assert sentinel not in heard
    assert b"EDLW" not in heard
    assert TOKEN not in heard


def test_replica_with_another_roles_certificate_is_refused_with_its_address(job):
    server = PsServer(Store(), "127.0.0.1", 0, TOKEN, tls=job(Role.WORKER, 1))
    try:
        with pytest.raises(AuthenticationError, match=f"{server.address}: .*another role"):
            PsClient.connect([server.address], TOKEN, 0, 10, tls=job(Role.WORKER))
    finally:
        server.stop()


def test_client_without_a_good_certificate_is_refused(job):
    server = PsServer(Store(), "127.0.0.1", 0, TOKEN, tls=job(Role.PS))
    try:
        for tls in (job("user"), job(Role.WORKER, life_seconds=LONG_AGO)):
            with pytest.raises(AuthenticationError, match="refuses this process's certificate"):
                PsClient.connect([server.address], TOKEN, 0, 10, tls=tls)
    finally:
        server.stop()


def test_client_on_the_same_host_goes_on_by_the_unix_socket(job):
    server = PsServer(Store(), "127.0.0.1", 0, TOKEN, tls=job(Role.PS))
    relay = RecordingRelay(server.address)
    try:
        client = PsClient.connect([relay.address], TOKEN, 0, 30, tls=job(Role.WORKER))
        heard = len(relay.heard)
        client.declare(MODEL, NOTHING, NOTHING)
        client.pull([(0, np.arange(100_000))], training=True)
        assert len(relay.heard) < heard + 100_000
    finally:
        server.stop()
        relay.close()


def test_files_that_are_missing_are_named(job, tmp_path):
    files = (tmp_path / "ca.pem", tmp_path / "none.pem", tmp_path / "none.pem")
    with pytest.raises(ValueError, match=r"none\.pem"):
        PsServer(Store(), "127.0.0.1", 0, TOKEN, tls=files)
