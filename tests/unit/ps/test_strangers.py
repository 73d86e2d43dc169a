"""Anything may be said at the port of a ps replica: it logs, closes, serves on, and stays small.

The wire is written here a second time, from `docs/designs/wire.md`.
"""

import hashlib
import hmac
import json
import os
import random
import socket
import struct
from dataclasses import asdict

import numpy as np
import psutil
import pytest

from elasticdl._core import PsClient, PsServer, Store
from elasticdl.backends.base import Initializer, ModelDescription, OptimizerSpec, TableDescription

TOKEN = b"the token of this job"
MODEL = ModelDescription(
    tables=(
        TableDescription("t", 4, Initializer("constant", {"value": 1.0}), OptimizerSpec("sgd")),
    ),
    dense=(),
    state=(),
    optimizer=OptimizerSpec("sgd"),
    seed=5,
)
GIBIBYTE = 1 << 30
MAX_GROWTH_BYTES = 64 << 20
KEYS, ROWS, DENSE, STATE, PARTS = 1, 2, 3, 4, 7
PULL, PUSH, STATS, PUSH_EACH = 4, 5, 9, 16


@pytest.fixture
def server():
    server = PsServer(Store(), "127.0.0.1", 0, TOKEN)
    yield server
    server.stop()


def dial(server):
    host, port = server.address.split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exactly(connection, count):
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        assert piece, f"closed after {len(data)} of {count} bytes"
        data += piece
    return data


def shake_hands(connection, token=TOKEN):
    """Prove the token; return the start of the replica's verdict, and whether it is proven too."""
    verdict, proven = verdict_of(connection, token)
    return struct.unpack_from("<4sHHII", verdict), proven


def verdict_of(connection, token=TOKEN):
    greeting = exactly(connection, 40)
    proof = struct.pack("<4sHHq32s", b"EDLP", 2, 0, 7, bytes(range(32)))
    said = b"elasticdl ps: client knows the token" + greeting + proof
    proof += hmac.digest(token, said, hashlib.sha256)
    connection.sendall(proof)
    verdict = exactly(connection, 112)
    said = b"elasticdl ps: server knows the token" + greeting + proof + verdict[:80]
    proven = hmac.compare_digest(verdict[80:], hmac.digest(token, said, hashlib.sha256))
    return verdict, proven


def padded(data):
    return data + bytes(-len(data) % 64)


def frame(op, arrays=(), flags=0, args=(0, 0, 0, 0)):
    """Encode a request; arrays are (kind, table, width, NumPy array)."""
    elements = {KEYS: 2, ROWS: 3, DENSE: 3, STATE: 3, PARTS: 2}
    directory = b"".join(
        struct.pack("<HHIIIQ", kind, elements[kind], table, width, 0, array.size // width)
        for kind, table, width, array in arrays
    )
    payload = padded(directory) + b"".join(padded(array.tobytes()) for *_, array in arrays)
    header = struct.pack("<4sHHIIQQ4Q", b"EDLW", 2, op, flags, len(arrays), 1, len(payload), *args)
    return header + payload


def valid_frames():
    keys, rows, none = np.arange(20), np.ones(80, np.float32), np.zeros(0, np.float32)
    update = [(KEYS, 0, 1, keys), (ROWS, 0, 4, rows), (DENSE, 0, 1, none), (STATE, 0, 1, none)]
    of_each = np.array([[2, 1 | index << 32, 20, 0] for index in (0, 1)])
    return [
        frame(PUSH_EACH, [(PARTS, 0, 4, of_each), *update, *update], args=of_each[0].tolist()),
        frame(PULL, [(KEYS, 0, 1, keys)], flags=3),
        frame(PUSH, update, args=(1, 1, 20, 0)),
        frame(STATS),
    ]


def until_closed(connection):
    """Say no more; return what the replica says until it closes the connection."""
    words = b""
    try:
        connection.shutdown(socket.SHUT_WR)
        while piece := connection.recv(65536):
            words += piece
    except OSError:
        pass  # reset: bytes were on their way that nobody will read
    connection.close()
    return words


def serves(server):
    client = PsClient.connect([server.address], TOKEN, 0, 60.0)
    none = np.zeros(0, np.float32)
    client.declare(json.dumps(asdict(MODEL)), none, none)
    ids = np.array([10**15 + 1])
    return bool((client.pull([(0, ids)], False).rows[0] == 1.0).all())


def resident_bytes():
    return psutil.Process().memory_info().rss


def test_the_wire_is_as_documented(server):
    assert serves(server)
    connection = dial(server)
    assert shake_hands(connection) == ((b"EDLP", 2, 1, 0, 1), True)
    connection.sendall(valid_frames()[1])
    header = struct.unpack("<4sHHIIQQ4Q", exactly(connection, 64))
    assert header[:7] == (b"EDLW", 2, PULL, 0, 3, 1, 128 + 320)
    payload = exactly(connection, 128 + 320)
    assert struct.unpack_from("<HHIIIQ", payload) == (ROWS, 3, 0, 4, 0, 20)
    np.testing.assert_array_equal(np.frombuffer(payload, np.float32, 80, 128), np.ones(80))
    connection.close()


def test_gradients_of_several_minibatches_are_said_as_documented(server):
    assert serves(server)
    connection = dial(server)
    assert shake_hands(connection)[1]
    connection.sendall(valid_frames()[0])
    header = struct.unpack("<4sHHIIQQ4Q", exactly(connection, 64))
    assert header[:7] == (b"EDLW", 2, PUSH_EACH, 0, 1, 1, 64 + 64)
    payload = exactly(connection, 64 + 64)
    assert np.frombuffer(payload, np.uint64, 8, 64).tolist() == [1, 0, 4, 0, 2, 1, 4, 0]
    connection.close()


def test_a_wrong_token_is_refused_and_logged(server, capfd):
    connection = dial(server)
    verdict, proven = shake_hands(connection, b"a guess")
    assert (verdict, proven) == ((b"EDLP", 2, 2, 0, 0), False)
    until_closed(connection)
    assert "turned away: it does not know this job's token" in capfd.readouterr().err
    assert serves(server)


def test_garbage_before_the_proof_is_survived_and_logged(server, capfd):
    chance = random.Random(1)
    before = resident_bytes()
    for _ in range(150):
        connection = dial(server)
        connection.sendall(chance.randbytes(chance.choice([1, 7, 8, 80, 5000, 200_000])))
        assert len(until_closed(connection)) <= 40
    assert serves(server)
    assert resident_bytes() - before < MAX_GROWTH_BYTES
    log = capfd.readouterr().err
    assert "this is no elasticdl worker" in log
    assert log.count("turned away") <= 60


def test_mutated_frames_are_survived(server):
    assert serves(server)
    chance = random.Random(2)
    frames = valid_frames()
    before = resident_bytes()
    for _ in range(300):
        data = bytearray(chance.choice(frames))
        for _ in range(chance.choice([1, 1, 2, 8])):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0x80, 0xFF])
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        connection = dial(server)
        assert shake_hands(connection)[1]
        connection.sendall(data)
        until_closed(connection)
    assert serves(server)
    assert resident_bytes() - before < MAX_GROWTH_BYTES


def test_promised_lengths_cost_nothing(server):
    assert serves(server)
    before = resident_bytes()
    connections = []
    for payload_bytes in [GIBIBYTE] * 20 + [GIBIBYTE + 1, 2**63, 2**64 - 1]:
        header = struct.pack("<4sHHIIQQ4Q", b"EDLW", 2, PULL, 0, 1, 1, payload_bytes, 0, 0, 0, 0)
        connection = dial(server)
        assert shake_hands(connection)[1]
        connection.sendall(header + bytes(1000))
        connections.append(connection)
    assert serves(server)
    assert resident_bytes() - before < MAX_GROWTH_BYTES
    refused = [until_closed(connection) for connection in connections][-3:]
    assert all(b"the limit is 1073741824" in words for words in refused)


def test_many_strangers_who_say_nothing_are_bounded(server):
    silent = [dial(server) for _ in range(100)]
    for connection in silent:
        connection.close()
    assert serves(server)


def greeting_bytes(name, user):
    """Connect to a Unix socket as another user, in a process; return the bytes of the greeting."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setuid(user)
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(60)
            connection.connect(b"\0" + name)
            os._exit(len(connection.recv(40)))
        finally:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users")
def test_a_process_of_another_user_is_turned_away_from_the_unix_socket(server):
    with dial(server) as connection:
        verdict, _ = verdict_of(connection)
    name = verdict[16:80].rstrip(b"\0")

    assert greeting_bytes(name, user=os.geteuid()) == 40
    assert greeting_bytes(name, user=65534) == 0
