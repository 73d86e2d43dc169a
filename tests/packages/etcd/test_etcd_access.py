"""An etcd that shows a certificate and asks for a password, and what strangers at its port hear."""

import ipaddress
import threading
from concurrent import futures
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from elasticdl.errors import ConfigError, StateError
from elasticdl.packages.etcd.access import EtcdAccess
from elasticdl.runtime.credentials.files import write_private
from elasticdl.state.open import check_state, open_state

pytest.importorskip("aetcd", reason="needs elasticdl-train[etcd]")
PASSWORD = "swordfish-4711"
PEM = serialization.Encoding.PEM


def self_signed(path):
    """Write a certificate for 127.0.0.1 with its key; it is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "etcd")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .sign(key, hashes.SHA256())
    )
    pkcs8 = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(PEM, pkcs8, serialization.NoEncryption())
    write_private(path, certificate.public_bytes(PEM) + pem)
    return path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """An etcd with TLS and one user, root; returns its endpoint and its authority."""
    from aetcd import rpc

    from tests.clusters.etcd import EtcdServer

    folder = tmp_path_factory.mktemp("guarded")
    ca = self_signed(folder / "etcd.pem")
    try:
        server = EtcdServer(folder, certificate=ca)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with server:
        proof = grpc.ssl_channel_credentials(ca.read_bytes())
        with grpc.secure_channel(server.endpoint, proof) as channel:
            auth = rpc.AuthStub(channel)
            auth.UserAdd(rpc.AuthUserAddRequest(name="root", password=PASSWORD), timeout=60)
            auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"), timeout=60)
            auth.AuthEnable(rpc.AuthEnableRequest(), timeout=60)
        yield server.endpoint, ca


def url_of(endpoint, ca, tmp_path, password=PASSWORD):
    user_file = tmp_path / "user"
    write_private(user_file, f"root:{password}\n".encode())
    return f"etcd://{endpoint}/{tmp_path.name}?{urlencode({'ca': ca, 'user_file': user_file})}"


@pytest.mark.etcd
def test_a_journal_is_kept_by_tls_as_a_user(guarded, tmp_path):
    url = url_of(*guarded, tmp_path)
    state = open_state(url, tmp_path)
    state.append([["a"]])
    state._client._tokens[0] = "one of a while ago"
    state.append([["b"]])
    state.close()
    again = open_state(url, tmp_path)
    assert again.load() == (None, [["a"], ["b"]])
    again.close()


@pytest.mark.etcd
def test_a_wrong_password_is_told_at_once(guarded, tmp_path):
    with pytest.raises(StateError, match="invalid user ID or password"):
        open_state(url_of(*guarded, tmp_path, "wrong"), tmp_path)


class Thief(grpc.GenericRpcHandler):
    def __init__(self):
        self.told = []

    def service(self, handler_call_details):
        self.told.append(handler_call_details.method)
        return None


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_stranger_at_the_port_of_etcd_is_told_no_password(tmp_path, with_tls):
    thief = Thief()
    server = grpc.server(futures.ThreadPoolExecutor(1), [thief])
    if with_tls:
        own = self_signed(tmp_path / "thief.pem").read_bytes()
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(own, own)]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    from elasticdl.packages.etcd.client import EtcdClient, rpc

    user_file = tmp_path / "user"
    write_private(user_file, b"root:secret")
    access = EtcdAccess(ca=self_signed(tmp_path / "ca.pem"), user_file=user_file)
    client = EtcdClient([f"127.0.0.1:{port}"], "test", access)
    ends = threading.Timer(1.0, client.leave)
    ends.start()
    with pytest.raises(StateError, match="was closed while etcd could not be reached"):
        client.call("Range", rpc.RangeRequest(key=b"x"))
    client.close()
    server.stop(None).wait()
    assert thief.told == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("user_file=/u", "expected ca=/PATH too"),
        ("ca=ca.pem", "found ca and another value"),
        ("ca=/c&password=x", "found password and another value"),
        ("ca=/c&cert=/x", "cert and key need each other"),
        ("ca=/c&ca=/d", "each name once"),
    ],
)
def test_what_does_not_fit_is_refused(query, words):
    with pytest.raises(ConfigError, match=words):
        check_state(f"etcd://127.0.0.1:1/job?{query}")


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (b"root:x", 0o644, "others can read"),
        (b"root", 0o600, "expected one line, USER:PASSWORD"),
        (b"a:b\nc:d\n", 0o600, "expected one line, USER:PASSWORD"),
    ],
)
def test_a_password_is_one_line_that_others_cannot_read(tmp_path, content, mode, words):
    path = tmp_path / "user"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=words):
        EtcdAccess(user_file=path).user()


def test_a_journal_that_crosses_a_network_in_clear_text_is_told():
    (note,) = check_state("etcd://etcd:2379/job")
    assert "crosses the network in clear text" in note
    assert check_state("etcd://127.0.0.1:2379,[::1]:2379/job") == []
    assert check_state("etcd://etcd:2379/job?ca=/ca.pem") == []
