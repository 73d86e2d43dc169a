"""A node of the test cluster forwards ports as the Python client asks for it."""

import socket
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from kubernetes.client import Configuration
from kubernetes.stream.ws_client import portforward_call

from tests.clusters.kubernetes.port_forward import RefusedError, serve

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def certificate(tmp_path):
    files = str(tmp_path / "server.crt"), str(tmp_path / "server.key")
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    subprocess.run(
        ["openssl", *words.split(), "-subj", "/CN=node", "-out", files[0], "-keyout", files[1]],
        check=True,
        capture_output=True,
    )
    return files


@pytest.fixture
def echo():
    """The port of a server that gives back what it gets, and ends when it has got an x."""

    def answer(connection):
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)
                if data.endswith(b"x"):
                    return

    def accept():
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,)).start()

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=accept)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


@pytest.fixture
def node(certificate):
    """The URL of a server that forwards to ports of this machine, and what it has refused."""
    refused = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            try:
                serve(self, "127.0.0.1", int(self.path.partition("ports=")[2]))
            except RefusedError as error:
                refused.append(str(error))
                self.send_error(400)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}/portForward", refused
    server.shutdown()
    thread.join()
    server.server_close()


def forward(url, port):
    configuration = Configuration()
    configuration.verify_ssl = False
    return portforward_call(configuration, "GET", url, query_params=[("ports", str(port))])


def test_bytes_come_back_in_order_and_the_pods_end_is_seen(node, echo):
    way = forward(node[0], echo)
    near = way.socket(echo)
    near.settimeout(30)
    sent = bytes(range(250)) * 4000
    for start in range(0, len(sent), 50_000):
        near.sendall(sent[start : start + 50_000])
        found = b""
        while len(found) < 50_000:
            found += near.recv(1 << 16)
        assert found == sent[start : start + 50_000]
    near.sendall(b"x")
    assert near.recv(10) == b"x"
    assert near.recv(10) == b""
    assert way.error(echo) is None
    near.close()
    way.websocket.shutdown()  # which the library leaves to us
    assert not node[1]


def test_a_port_that_nobody_listens_at_is_refused(node):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Exception, match="400"):
        forward(node[0], port)
    assert f"no connection to port {port} of the pod" in node[1][0]
