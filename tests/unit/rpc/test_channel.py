"""Authentication, retry and limits of the control plane, over real sockets."""

import asyncio
import contextlib
import os
import socket
import threading

import grpc
import pytest

from elasticdl.errors import AuthenticationError, ElasticdlError, UnavailableError
from elasticdl.job import Finished, Lease, Outcome, PsRoute, Role, TaskReport
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import MAX_MESSAGE_BYTES, SERVER_OPTIONS, Authentication, Defects
from elasticdl.rpc.client import GrpcMasterClient, JobClient
from elasticdl.rpc.elasticdl_pb2_grpc import MasterServicer, add_MasterServicer_to_server

TOKEN = b"s" * 32


class Answers(MasterServicer):
    """Answers calls from a script; what is not in it is not implemented."""

    def __init__(self, **script):
        self.seen = []
        self._script = script

    async def _answer(self, name, request, context):
        self.seen.append((name, request))
        answer = self._script[name]
        if callable(answer):
            answer = answer(len(self.seen))
        if isinstance(answer, grpc.StatusCode):
            await context.abort(answer, "as the script says")
        return answer

    async def Heartbeat(self, request, context):
        return await self._answer("Heartbeat", request, context)

    async def Lease(self, request, context):
        return await self._answer("Lease", request, context)

    async def Report(self, request, context):
        return await self._answer("Report", request, context)

    async def GetPsRoute(self, request, context):
        return await self._answer("GetPsRoute", request, context)

    async def GetStatus(self, request, context):
        return await self._answer("GetStatus", request, context)

    async def WatchStatus(self, request, context):
        self.seen.append(("WatchStatus", request))
        for status in self._script["WatchStatus"](len(self.seen)):
            if isinstance(status, grpc.StatusCode):
                await context.abort(status, "as the script says")
            yield pb.JobStatus(status=status)


class Server:
    """A gRPC server in an event loop of its own thread."""

    def __init__(self, servicer, port=0, host="127.0.0.1"):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.port = self._run(self._start(servicer, f"{host}:{port}"))
        self.address = f"{host}:{self.port}"

    async def _start(self, servicer, address):
        self._server = grpc.aio.server(
            interceptors=[Authentication(TOKEN), Defects()], options=SERVER_OPTIONS
        )
        add_MasterServicer_to_server(servicer, self._server)
        found = self._server.add_insecure_port(address)
        await self._server.start()
        return found

    def close(self):
        self._run(self._server.stop(None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


@pytest.fixture
def serve():
    with contextlib.ExitStack() as stack:

        def start(servicer, port=0):
            server = Server(servicer, port)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def connect():
    with contextlib.ExitStack() as stack:

        def make(address, token=TOKEN, kind=GrpcMasterClient, **options):
            client = kind(address, token, **options)
            stack.callback(client.close)
            return client

        yield make


HEARTBEAT = pb.HeartbeatResponse()


@pytest.mark.parametrize("token", [b"x" * 32, b"", TOKEN + b"s"])
def test_wrong_token_is_refused_at_once(serve, connect, token):
    servicer = Answers(Heartbeat=HEARTBEAT)
    client = connect(serve(servicer).address, token)
    with pytest.raises(AuthenticationError, match="expected the token of this job"):
        client.heartbeat(Role.WORKER, 0)
    assert servicer.seen == []


def test_call_without_a_token_is_refused_before_its_message_is_parsed(serve):
    server = serve(Answers(Heartbeat=HEARTBEAT))
    with grpc.insecure_channel(server.address) as channel:
        for path in ("/elasticdl.v1.Master/Heartbeat", "/no.such/Method"):
            call = channel.unary_unary(path)
            with pytest.raises(grpc.RpcError) as error:
                call(b"\xff" * 1000, timeout=100)  # no message of ours
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_stream_without_a_token_is_refused(serve, connect):
    client = connect(serve(Answers()).address, b"wrong", JobClient)
    with pytest.raises(AuthenticationError):
        next(client.watch())


def test_answers_are_repeated_until_they_come(serve, connect):
    def answer(attempt):
        return grpc.StatusCode.UNAVAILABLE if attempt < 4 else HEARTBEAT

    servicer = Answers(Heartbeat=answer)
    connect(serve(servicer).address).heartbeat(Role.PS, 3)
    assert len(servicer.seen) == 4
    assert servicer.seen[0][1].index == 3


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
def test_what_a_proxy_says_when_it_knows_no_better_is_no_answer(serve, connect, code):
    servicer = Answers(Heartbeat=lambda attempt: code if attempt < 3 else HEARTBEAT)
    connect(serve(servicer).address).heartbeat(Role.WORKER, 0)
    assert len(servicer.seen) == 3


def test_who_gives_up_is_told_what_the_proxy_said(serve, connect):
    client = connect(serve(Answers(GetStatus=grpc.StatusCode.INTERNAL)).address, kind=JobClient)
    with pytest.raises(UnavailableError, match=r"did not answer .* \(INTERNAL: as the script says"):
        client.status(give_up_seconds=0.0)


def test_defect_of_the_master_is_an_answer(serve, connect, caplog):
    def answer(attempt):
        raise KeyError("a defect")

    servicer = Answers(Heartbeat=answer)
    client = connect(serve(servicer).address)
    with pytest.raises(ElasticdlError, match=r"refused .* a defect in the master \(KeyError: 'a d"):
        client.heartbeat(Role.WORKER, 0)
    assert len(servicer.seen) == 1
    assert "in /elasticdl.v1.Master/Heartbeat" in caplog.text


def test_all_attempts_at_a_lease_carry_one_number(serve, connect):
    def answer(attempt):
        finished = pb.LeaseResponse(finished=pb.Finished())
        return grpc.StatusCode.UNAVAILABLE if attempt % 2 else finished

    servicer = Answers(Lease=answer)
    client = connect(serve(servicer).address)
    assert client.lease(0) == Finished()
    assert client.lease(0) == Finished()
    assert [request.request for _, request in servicer.seen] == [1, 1, 2, 2]
    assert len({request.session for _, request in servicer.seen}) == 1


def test_each_process_has_a_session_of_its_own(serve, connect):
    servicer = Answers(Heartbeat=HEARTBEAT)
    server = serve(servicer)
    for _ in range(2):
        connect(server.address).heartbeat(Role.WORKER, 0)
    first, second = (request.session for _, request in servicer.seen)
    assert first != second


def test_master_that_comes_back_is_found_again(serve, connect):
    before = Server(Answers(Heartbeat=HEARTBEAT))
    client = connect(before.address)
    client.heartbeat(Role.WORKER, 0)
    before.close()
    beat = threading.Thread(target=client.heartbeat, args=(Role.WORKER, 0))
    beat.start()
    after = Answers(Heartbeat=HEARTBEAT)
    serve(after, before.port)
    beat.join()
    assert len(after.seen) == 1


def test_ps_replicas_are_waited_for(serve, connect):
    def answer(attempt):
        route = pb.PsRoute(generation=2, addresses=["a:1", "b:2"])
        return pb.GetPsRouteResponse(complete=attempt == 3, route=route)

    route = connect(serve(Answers(GetPsRoute=answer)).address).ps_route()
    assert route == PsRoute(2, ("a:1", "b:2"))


def test_refusal_is_not_repeated(serve, connect):
    servicer = Answers(Lease=grpc.StatusCode.FAILED_PRECONDITION)
    client = connect(serve(servicer).address)
    with pytest.raises(ElasticdlError, match="refused the request: as the script says"):
        client.lease(0)
    assert len(servicer.seen) == 1


def test_closing_ends_a_call_that_waits(connect):
    with socket.socket() as taken:  # bound, never listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        client = connect(address, attempt_seconds=0.05)
        failed = []

        def call():
            try:
                client.heartbeat(Role.WORKER, 0)
            except UnavailableError as error:
                failed.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        client.close()
        thread.join()
    assert "is closed" in str(failed[0])


def test_caller_may_give_up(connect):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        client = connect(address, kind=JobClient, attempt_seconds=0.05)
        with pytest.raises(UnavailableError, match="did not answer"):
            client.status(give_up_seconds=0.1)


def test_too_large_a_message_is_refused_and_not_repeated(serve, connect):
    client = connect(serve(Answers(Report=pb.ReportResponse())).address)
    report = TaskReport(0, 1, Outcome.FAILED, message="x" * (MAX_MESSAGE_BYTES + 1))
    with pytest.raises(ElasticdlError, match="larger than"):
        client.report(0, report)


def test_calls_of_many_threads_do_not_mix(serve, connect):
    def answer(_):
        return pb.LeaseResponse(finished=pb.Finished())

    servicer = Answers(Lease=answer)
    client = connect(serve(servicer).address)
    threads = [
        threading.Thread(target=lambda: [client.lease(0) for _ in range(20)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(request.request for _, request in servicer.seen) == list(range(1, 161))


def test_watch_goes_on_after_the_master_was_away(serve, connect):
    def pictures(attempt):
        if attempt == 1:
            return ["running", grpc.StatusCode.UNAVAILABLE]
        return ["running", "finished", "never reached"]

    client = connect(serve(Answers(WatchStatus=pictures)).address, kind=JobClient)
    assert [status.status for status in client.watch()] == ["running", "running", "finished"]


def test_garbage_does_not_harm_the_server(serve, connect):
    servicer = Answers(Heartbeat=HEARTBEAT)
    server = serve(servicer)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), preface + os.urandom(5000), b""):
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection(("127.0.0.1", server.port)) as connection,
        ):
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass
    connect(server.address).heartbeat(Role.WORKER, 0)
    assert len(servicer.seen) == 1


def test_lease_has_the_task_that_was_sent(serve, connect):
    task = pb.Task(id=5, kind=pb.TASK_KIND_TRAINING, shard=pb.Shard(name="a", end=9))
    answer = pb.LeaseResponse(lease=pb.Lease(task=task, number=2))
    lease = connect(serve(Answers(Lease=answer)).address).lease(0)
    assert isinstance(lease, Lease)
    assert (lease.task.id, lease.task.shard.end, lease.number) == (5, 9, 2)
