"""What goes over the wire between workers of a ring, and who is let in, with TLS and without."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from elasticdl._core import PsClient, PsServer, RingListener, Store
from elasticdl.errors import AuthenticationError, RingError, UnavailableError
from elasticdl.job import Role
from elasticdl.packages.all_reduce.collective import WorldView, form_ring
from elasticdl.runtime.credentials.authority import USER, Authority, Identity
from tests.unit.recording_relay import RecordingRelay

LONG_AGO = -4 * 86_400.0  # more than a clock may be ahead of others
TOKEN = b"a secret of thirty-two bytes ...."
SENTINEL = np.float32(1234.5678)
GREETING = b"EDLP"  # how the handshake of the token begins


@pytest.fixture
def issue(tmp_path):
    """Return what makes the files of a process, of this job or of another one."""
    authorities = {
        name: Authority.create(tmp_path / name, "job") for name in ("ours", "of another job")
    }

    def make(role, index=0, life_seconds=3600, whose="ours"):
        folder = tmp_path / whose
        identity = Identity("job", role, index)
        return authorities[whose].issue(folder, identity, life_seconds).as_tuple()

    return make


def listeners(*files):
    return [RingListener("127.0.0.1", 0, TOKEN, tls=tls) for tls in files]


def reduce_together(listeners, members, values, world_id=1, form_seconds=60):
    """Form a ring over TCP; return what each rank gets, or the error that it meets."""

    def run(rank):
        world = WorldView(world_id, rank, members)
        try:
            ring = form_ring(
                world,
                listeners[rank],
                timeout_seconds=form_seconds,
                unix_sockets=False,
                shared_memory=False,
            )
        except RingError as error:
            return error
        try:
            out = np.empty_like(values)
            ring.all_reduce([values], [out], 1, timeout_seconds=20)
            return ring.transport, out
        finally:
            ring.close()

    with ThreadPoolExecutor(len(listeners)) as threads:
        return list(threads.map(run, range(len(listeners))))


def capture(*files):
    """Reduce a sentinel through a relay before each rank; return what the relays heard."""
    ranks = listeners(*files)
    relays = [RecordingRelay(rank.address) for rank in ranks]
    values = np.full(100_000, SENTINEL, np.float32)
    try:
        found = reduce_together(ranks, tuple(relay.address for relay in relays), values)
        for result in found:
            assert not isinstance(result, RingError), result
            np.testing.assert_array_equal(result[1], values)
        return found[0][0], b"".join(relay.heard for relay in relays)
    finally:
        for relay in relays:
            relay.close()


def test_capture_shows_no_gradient_with_tls_and_shows_it_without(issue):
    sentinel = np.full(4, SENTINEL, np.float32).tobytes()
    transport, heard = capture(None, None)
    assert transport == "tcp"
    assert sentinel in heard  # so the check can fail
    assert GREETING in heard
    transport, heard = capture(issue(Role.WORKER, 0), issue(Role.WORKER, 1))
    assert transport == "tls"
    assert len(heard) > 400_000
    assert sentinel not in heard
    assert GREETING not in heard
    assert TOKEN not in heard


STRANGERS = {
    "no certificate": lambda issue: None,
    "expired": lambda issue: issue(Role.WORKER, 1, LONG_AGO),
    "another job's": lambda issue: issue(Role.WORKER, 1, whose="of another job"),
    "a ps replica's": lambda issue: issue(Role.PS, 1),
    "a command's": lambda issue: issue(USER),
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_worker_with_no_good_certificate_is_in_no_ring(issue, kind):
    ours = listeners(issue(Role.WORKER, 0), issue(Role.WORKER, 2))
    (stranger,) = listeners(STRANGERS[kind](issue))
    members = (ours[0].address, stranger.address)
    values = np.full(10, SENTINEL, np.float32)
    here, there = reduce_together([ours[0], stranger], members, values, form_seconds=5)
    assert isinstance(here, RingError)
    assert isinstance(there, RingError)
    assert any(word in f"{here} {there}" for word in ("certificate", "TLS"))
    members = tuple(listener.address for listener in ours)
    for transport, out in reduce_together(ours, members, values, world_id=2):
        assert transport == "tls"
        np.testing.assert_allclose(out, values, rtol=1e-6)


def ask(address, tls, is_copy=True, seconds=60.0):
    client = PsClient.connect(
        [address], TOKEN, -1, seconds, tls=tls, unix_sockets=False, is_copy=is_copy
    )
    return client.audit()


def test_the_master_alone_may_ask_a_worker_for_its_parameters(issue):
    copy = PsServer(Store(), "127.0.0.1", 0, TOKEN, tls=issue(Role.WORKER, 0), is_copy=True)
    try:
        ask(copy.address, issue(Role.MASTER))
        strangers = [
            None,
            issue(Role.MASTER, life_seconds=LONG_AGO),
            issue(Role.MASTER, whose="of another job"),
            issue(Role.WORKER, 1),
            issue(Role.PS),
            issue(USER),
        ]
        for stranger in strangers:
            with pytest.raises((AuthenticationError, UnavailableError), match=r"TLS|certificate"):
                ask(copy.address, stranger, seconds=2.0)
    finally:
        copy.stop()


def test_a_worker_is_not_taken_for_a_ps_replica_nor_the_other_way_round(issue):
    for role, is_copy in ((Role.WORKER, True), (Role.PS, False)):
        server = PsServer(Store(), "127.0.0.1", 0, TOKEN, tls=issue(role), is_copy=is_copy)
        try:
            with pytest.raises(AuthenticationError, match="another role"):
                ask(server.address, issue(Role.MASTER), not is_copy)
        finally:
            server.stop()
    # Without TLS the proofs of the token differ.
    server = PsServer(Store(), "127.0.0.1", 0, TOKEN, is_copy=True)
    try:
        with pytest.raises(AuthenticationError):
            ask(server.address, None, is_copy=False)
    finally:
        server.stop()
