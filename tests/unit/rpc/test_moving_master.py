"""A master that comes back at another address, under the name that it had."""

import json
import socket
import struct
import threading
from types import SimpleNamespace

import pytest

from elasticdl.job import Role
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.client import GrpcMasterClient
from elasticdl.runtime.addresses import Listening
from elasticdl.runtime.process import ADDRESS_FILE, ProcessArguments

from .test_channel import HEARTBEAT, TOKEN, Answers, Server, connect  # noqa: F401  # a fixture

A, IN = 1, 1


class Names:
    """A name server with one name, which has one IPv4 address at a time, or none."""

    def __init__(self):
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.address = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            query, asker = self._socket.recvfrom(512)
            if not query:
                return
            self._socket.sendto(self._answer(query), asker)

    def _answer(self, query):
        end = query.index(b"\0", 12) + 5  # of the one question: name, type, class
        (kind,) = struct.unpack("!H", query[end - 4 : end - 2])
        found = self.address if kind == A else None
        answer = b""
        if found:  # a pointer to the name, no time to live, four bytes of address
            answer = struct.pack("!HHHIH", 0xC00C, A, IN, 0, 4) + socket.inet_aton(found)
        return (
            query[:2] + struct.pack("!HHHHH", 0x8180, 1, bool(found), 0, 0) + query[12:end] + answer
        )

    def close(self):
        self._socket.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def names():
    found = Names()
    yield found
    found.close()


def test_a_master_that_comes_back_elsewhere_is_found_by_its_name(names, connect):  # noqa: F811
    first = Server(Answers(Heartbeat=HEARTBEAT), host="127.0.0.2")
    names.address = "127.0.0.2"
    client = connect(f"dns://127.0.0.1:{names.port}/master.job:{first.port}")
    client.heartbeat(Role.WORKER, 0)
    first.close()
    servicer = Answers(Heartbeat=pb.HeartbeatResponse())
    second = Server(servicer, first.port, host="127.0.0.3")
    names.address = "127.0.0.3"
    try:
        client.heartbeat(Role.WORKER, 0)
    finally:
        second.close()
    assert [name for name, _ in servicer.seen] == ["Heartbeat"]


def test_a_master_that_had_to_take_another_port_is_found_where_the_jobs_folder_says(tmp_path):
    first = Server(Answers(Heartbeat=HEARTBEAT))
    arguments = ProcessArguments(None, TOKEN, tmp_path, first.address, 0, Listening())
    client = GrpcMasterClient(
        arguments.master, TOKEN, attempt_seconds=0.3, where=arguments.master_now
    )
    beats = [client.heartbeat(Role.WORKER, 0)]
    first.close()
    with socket.create_server(("127.0.0.1", first.port)):  # a stranger has its port now
        second = Server(Answers(Heartbeat=HEARTBEAT))
        (tmp_path / ADDRESS_FILE).write_text(json.dumps({"address": second.address}))
        beats.append(client.heartbeat(Role.WORKER, 0))
        client.close()
        second.close()
    assert beats[0] == beats[1]


@pytest.mark.parametrize(("shares_folder", "found"), [(False, None), (True, "127.0.0.1:1")])
def test_a_master_of_another_machine_is_looked_for_in_a_folder_that_is_shared(
    tmp_path, shares_folder, found
):
    (tmp_path / ADDRESS_FILE).write_text(json.dumps({"address": "127.0.0.1:1"}))
    config = SimpleNamespace(shares_folder=shares_folder)
    arguments = ProcessArguments(config, TOKEN, tmp_path, "10.0.0.7:5000", 0, Listening())
    assert arguments.master_now() == found
