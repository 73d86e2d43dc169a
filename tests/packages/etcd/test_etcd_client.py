"""Which endpoint and which token a client uses, with etcd servers that are played."""

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
        return self._rpc.RangeResponse()

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
