"""Which endpoint and which token a client uses, with etcd servers that are played."""

import threading
import time
from concurrent import futures

import grpc
import pytest

from elasticdl.packages.etcd.access import EtcdAccess
from elasticdl.runtime.credentials.files import write_private

pytest.importorskip("aetcd", reason="needs elasticdl-train[etcd]")
AWAY = "127.0.0.1:1"  # nobody listens there
OLD = (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old")


class PlayedEtcd(grpc.GenericRpcHandler):
    """Renews leases and answers reads; whose tokens are `old` is told to come again."""

    def __init__(self):
        from aetcd import rpc

        self._rpc = rpc
        self.renewed, self.num_logins, self.old = [], 0, set()
        self.keys, self.seconds_each = [], 0.0

    def service(self, details):
        method = details.method.rpartition("/")[2]
        rpc, unary = self._rpc, grpc.unary_unary_rpc_method_handler
        dump = lambda message: message.SerializeToString()  # noqa: E731
        if method == "Authenticate":
            return unary(self._login, rpc.AuthenticateRequest.FromString, dump)
        if method == "Range":
            return unary(self._read, rpc.RangeRequest.FromString, dump)
        if method == "LeaseKeepAlive":
            of_request = rpc.LeaseKeepAliveRequest.FromString
            return grpc.stream_stream_rpc_method_handler(self._renew, of_request, dump)
        return None

    def _login(self, request, context):
        self.num_logins += 1
        return self._rpc.AuthenticateResponse(token=f"token-{self.num_logins}")

    def _read(self, request, context):
        self._check(context)
        left = [key for key in self.keys if key >= request.key]
        found = left[: request.limit]
        time.sleep(self.seconds_each * len(found))  # as over a slow network
        kvs = [self._rpc.KeyValue(key=key, value=b"1") for key in found]
        return self._rpc.RangeResponse(kvs=kvs, more=len(left) > len(found))

    def _renew(self, requests, context):
        self._check(context)
        for request in requests:
            self.renewed.append(request.ID)
            yield self._rpc.LeaseKeepAliveResponse(ID=request.ID, TTL=2)

    def _check(self, context):
        if dict(context.invocation_metadata()).get("token") in self.old:
            context.abort(*OLD)


@pytest.fixture
def played():
    """An etcd and its endpoint."""
    etcd = PlayedEtcd()
    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, [etcd])
        endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        yield etcd, endpoint
        server.stop(None).wait()


@pytest.fixture
def connect(played, tmp_path):
    """Return a client of the played etcd, and of others before it."""
    from elasticdl.packages.etcd.client import EtcdClient

    write_private(tmp_path / "user", b"root:swordfish")
    clients = []

    def make(*others):
        access = EtcdAccess(user_file=tmp_path / "user")
        clients.append(EtcdClient([*others, played[1]], "test", access))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_a_lease_is_renewed_at_another_endpoint_if_one_is_away(played, connect):
    connect(AWAY).keep_alive(7, 60.0)
    assert played[0].renewed == [7]


def test_the_password_is_told_again_after_a_change_of_users(played, connect):
    from elasticdl.packages.etcd.client import rpc

    etcd, _ = played
    client = connect()
    client.call("Range", rpc.RangeRequest(key=b"a"))
    etcd.old = {"token-1"}
    client.call("Range", rpc.RangeRequest(key=b"a"))
    etcd.old = {"token-1", "token-2"}
    client.keep_alive(7, 60.0)  # this attempt shows that the token is old
    client.keep_alive(7, 60.0)
    assert (etcd.num_logins, etcd.renewed) == (3, [7])


def test_a_large_snapshot_comes_over_a_slow_network(played, connect, monkeypatch):
    from elasticdl.packages.etcd import client as room
    from elasticdl.packages.etcd.journal import EtcdState

    monkeypatch.setattr(room, "ATTEMPT_SECONDS", 0.5)
    state = EtcdState.__new__(EtcdState)  # one that need not become the master
    state._client, state._prefix = connect(), "jobs/a/"
    etcd, _ = played
    etcd.keys = [state._key("snapshots", 1, part).encode() for part in range(40)]
    etcd.seconds_each = 0.02
    given_up = threading.Timer(60.0, state._client.leave)
    given_up.start()
    try:
        assert state._read_parts("snapshots", 1, 40) == int("1" * 40)
    finally:
        given_up.cancel()
