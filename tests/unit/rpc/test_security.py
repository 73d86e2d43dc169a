"""TLS of the control plane, over real sockets: who is let in, and what the others are told."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from concurrent import futures

import grpc
import pytest

from elasticdl.errors import AuthenticationError, ElasticdlError
from elasticdl.job import Role
from elasticdl.master.certificates import Renewals
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import SERVER_OPTIONS, Authentication, server_options
from elasticdl.rpc.client import GrpcMasterClient, JobClient
from elasticdl.rpc.elasticdl_pb2_grpc import (
    MasterServicer,
    add_CertificatesServicer_to_server,
    add_MasterServicer_to_server,
)
from elasticdl.rpc.security import add_port, why_refused
from elasticdl.runtime import open_files
from elasticdl.runtime.credentials.authority import Authority, Identity, make_request
from elasticdl.runtime.credentials.files import TlsFiles, write_private
from elasticdl.runtime.credentials.job_authority import JobAuthority

TOKEN = b"s" * 32
LIFE_SECONDS = 3600
LONG_AGO = -4 * 86_400.0  # more than a clock may be ahead of others
IN_VAIN_SECONDS = 0.2  # for an attempt that gets no answer


class Answers(MasterServicer):
    def __init__(self):
        self.seen = []

    async def Heartbeat(self, request, context):
        self.seen.append(request)
        return pb.HeartbeatResponse()

    async def Stop(self, request, context):
        self.seen.append(request.reason)
        return pb.StopResponse()


class Server:
    """A master's server in an event loop of its own thread."""

    def __init__(self, tls, authority, port=0):
        self._port = port
        self.servicer = Answers()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.address = f"127.0.0.1:{self._run(self._start(tls, authority))}"

    async def _start(self, tls, authority):
        self._server = grpc.aio.server(
            interceptors=[Authentication(TOKEN)], options=server_options()
        )
        add_MasterServicer_to_server(self.servicer, self._server)
        add_CertificatesServicer_to_server(Renewals(authority), self._server)
        port = add_port(self._server, f"127.0.0.1:{self._port}", tls)
        await self._server.start()
        return port

    def close(self):
        if self._loop.is_closed():
            return
        self._run(self._server.stop(None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class Job:
    """A job's authority, its master's server, and clients of it."""

    def __init__(self, folder, stack):
        folder.mkdir()
        authority = Authority.create(folder, folder.name)
        self.authority = JobAuthority(authority, folder, folder.name, LIFE_SECONDS)
        self._stack = stack

    def files(self, role, index=0, life_seconds=LIFE_SECONDS):
        identity = Identity(self.authority.job, role, index)
        return self.authority.authority.issue(self.authority.folder, identity, life_seconds)

    def serve(self, tls, port=0):
        server = Server(tls, self.authority, port)
        self._stack.callback(server.close)
        return server

    def client(self, server, tls, token=TOKEN, attempt_seconds=30.0):
        client = GrpcMasterClient(
            server.address,
            token,
            on_unreachable=lambda words: None,
            attempt_seconds=attempt_seconds,
            tls=tls,
        )
        self._stack.callback(client.close)
        return client


@pytest.fixture
def make_job(tmp_path, monkeypatch):
    # Who gets no answer asks why after so long.
    monkeypatch.setattr("elasticdl.rpc.channel._SECONDS_BETWEEN_COMPLAINTS", 0.1)
    with contextlib.ExitStack() as stack:
        yield lambda name="ctr": Job(tmp_path / name, stack)


def test_processes_of_a_job_reach_their_master(make_job):
    job = make_job()
    server = job.serve(job.files(Role.MASTER))
    job.client(server, job.files(Role.WORKER)).heartbeat(Role.WORKER, 0)
    assert len(server.servicer.seen) == 1
    assert why_refused(server.address, job.files(Role.WORKER)) == ""


def test_token_is_asked_for_all_the_same(make_job):
    job = make_job()
    server = job.serve(job.files(Role.MASTER))
    with pytest.raises(AuthenticationError, match="expected the token of this job"):
        job.client(server, job.files(Role.WORKER), b"x" * 32).heartbeat(Role.WORKER, 0)
    assert server.servicer.seen == []


def of_another_job(job, make_job):
    return make_job("other").files(Role.WORKER)


def of_another_job_that_knows_ours(job, make_job):
    other = make_job("other").files(Role.WORKER)
    return TlsFiles(job.files(Role.PS).authority, other.certificate, other.key)


def expired(job, make_job):
    return job.files(Role.WORKER, life_seconds=LONG_AGO)


def none(job, make_job):
    return None


@pytest.mark.parametrize(
    ("stranger", "words"),
    [
        (of_another_job, "its certificate is not signed by this job's authority"),
        (of_another_job_that_knows_ours, "it refuses this process's certificate"),
        (expired, "it refuses this process's certificate .*expired"),
        (none, "it speaks TLS, and this process does not"),
    ],
)
def test_stranger_is_refused_before_its_message_is_read_and_told_why(make_job, stranger, words):
    job = make_job()
    server = job.serve(job.files(Role.MASTER))
    client = job.client(server, stranger(job, make_job), attempt_seconds=IN_VAIN_SECONDS)
    with pytest.raises(AuthenticationError, match=words):
        client.heartbeat(Role.WORKER, 0)
    assert server.servicer.seen == []


@pytest.mark.parametrize(
    ("role", "life_seconds", "words"),
    [
        (Role.WORKER, LIFE_SECONDS, "that of another role, expected the master's"),
        (Role.PS, LIFE_SECONDS, "that of another role, expected the master's"),
        (Role.MASTER, LONG_AGO, "its certificate has expired"),
    ],
)
def test_master_with_a_bad_certificate_is_not_believed(make_job, role, life_seconds, words):
    job = make_job()
    server = job.serve(job.files(role, life_seconds=life_seconds))
    client = job.client(server, job.files(Role.WORKER, 5), attempt_seconds=IN_VAIN_SECONDS)
    with pytest.raises(AuthenticationError, match=words):
        client.heartbeat(Role.WORKER, 5)
    assert server.servicer.seen == []


def test_master_without_tls_is_not_believed(make_job):
    job = make_job()
    server = job.serve(None)
    client = job.client(server, job.files(Role.WORKER), attempt_seconds=IN_VAIN_SECONDS)
    with pytest.raises(AuthenticationError, match="expected TLS, found something else"):
        client.heartbeat(Role.WORKER, 0)
    assert server.servicer.seen == []


class Thief(grpc.GenericRpcHandler):
    """A process of another user: it answers whatever it is called, and keeps what it is told."""

    def __init__(self, port, tls):
        self.told = []
        self._server = grpc.server(futures.ThreadPoolExecutor(2), [self], options=SERVER_OPTIONS)
        add_port(self._server, f"127.0.0.1:{port}", tls)
        self._server.start()

    def service(self, handler_call_details):
        self.told.append(handler_call_details.invocation_metadata)
        return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    def close(self):
        self._server.stop(None).wait()


@pytest.mark.parametrize("its_job", [None, "other"])
def test_who_takes_the_port_of_a_master_that_died_is_told_no_secret(make_job, its_job):
    job = make_job()
    tls = job.files(Role.MASTER)
    server = job.serve(tls)
    port = int(server.address.rpartition(":")[2])
    unheard = threading.Event()
    client = job.client(server, job.files(Role.WORKER), attempt_seconds=IN_VAIN_SECONDS)
    client.connection._on_unreachable = lambda words: unheard.set()
    client.heartbeat(Role.WORKER, 0)
    server.close()

    thief = Thief(port, make_job(its_job).files(Role.MASTER) if its_job else None)
    with futures.ThreadPoolExecutor(1) as pool:
        beat = pool.submit(client.heartbeat, Role.WORKER, 0)
        assert unheard.wait(30)
        assert not beat.done()
        told = thief.told
        thief.close()
        successor = job.serve(tls, port)
        beat.result(30)  # it goes on with the master that comes back
    assert told == []
    assert successor.servicer.seen  # more than once if an answer took too long


def test_a_credential_of_a_worker_does_not_stop_the_job(make_job):
    job = make_job()
    server = job.serve(job.files(Role.MASTER))
    for role in (Role.WORKER, Role.PS):
        with contextlib.closing(JobClient(server.address, TOKEN, tls=job.files(role))) as client:
            with pytest.raises(ElasticdlError, match=f"of the role {role} may not call Stop"):
                client.stop("x")
            with pytest.raises(ElasticdlError, match="may not call SetNumWorkers"):
                client.set_num_workers(9)
            with pytest.raises(ElasticdlError, match="may not call WatchStatus"):
                next(client.watch())
    with contextlib.closing(JobClient(server.address, TOKEN, tls=job.files("user"))) as user:
        user.stop("by its owner")
    assert server.servicer.seen == ["by its owner"]


def num_sockets():
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


def test_silent_strangers_leave_the_master_files_and_go_after_a_while(make_job, monkeypatch):
    num_strangers, most_open = 300, 100
    monkeypatch.setattr(open_files, "limit", lambda: most_open)
    options = [("grpc.server_handshake_timeout_ms", 1000)]
    monkeypatch.setattr("elasticdl.rpc.channel.SERVER_OPTIONS", [*SERVER_OPTIONS, *options])
    job = make_job()
    server = job.serve(job.files(Role.MASTER))
    worker = job.client(server, job.files(Role.WORKER))
    worker.heartbeat(Role.WORKER, 0)
    before = num_sockets()
    port = int(server.address.rpartition(":")[2])
    with contextlib.ExitStack() as strangers:
        for _ in range(num_strangers):
            strangers.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        worker.heartbeat(Role.WORKER, 0)
        # Both ends are in this process.
        assert num_sockets() <= before + num_strangers + most_open // 2
        deadline = time.monotonic() + 30
        while num_sockets() > before + num_strangers:  # there is room again
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert len(server.servicer.seen) == 2


def test_a_proxy_that_hangs_up_is_no_matter_of_tls(make_job):
    tls = make_job().files(Role.WORKER)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        port = proxy.getsockname()[1]

        def hang_up():
            accepted = proxy.accept()[0]
            accepted.recv(1 << 16)  # the greeting; what is unread would reset the connection
            accepted.close()

        answering = threading.Thread(target=hang_up)
        answering.start()
        said = why_refused(f"127.0.0.1:{port}", tls)
        answering.join()
    assert said == ""


def test_both_ends_go_on_with_renewed_certificates(make_job):
    job = make_job()
    master, worker = job.files(Role.MASTER), job.files(Role.WORKER, 3)
    client = job.client(job.serve(master), worker)
    for _ in range(4):
        key, request = make_request("worker-3")
        write_private(worker.certificate, client.renew_certificate(request) + key)
        job.files(Role.MASTER)
        client.heartbeat(Role.WORKER, 3)


def test_certificate_is_renewed_for_whom_it_names(make_job):
    job = make_job()
    server = job.serve(job.files(Role.MASTER))
    client = job.client(server, job.files(Role.WORKER, 3))
    with pytest.raises(ElasticdlError, match="expected a request for a certificate"):
        client.renew_certificate(b"nonsense")
