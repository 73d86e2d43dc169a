"""TLS of the control plane: credentials for gRPC, and the reason when they are refused.

gRPC only says that a server cannot be reached. So after such a failure one handshake is made with
Python's own TLS, which tells the reason.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from typing import Any

import grpc

from elasticdl.errors import ConfigError
from elasticdl.runtime.credentials.files import Stamp, TlsFiles

log = logging.getLogger(__name__)

MASTER_NAME = "master.elasticdl"
"""The name that the certificate of every master has."""

_PROBE_SECONDS = 1.0  # what it has to say is told with a complaint, which is not to wait for it


def open_channel(
    address: str,
    options: list[tuple[str, Any]],
    tls: TlsFiles | None,
    name: str = MASTER_NAME,
) -> Any:
    """Return a channel to a server; with TLS, the channel shows the present certificate.

    Args:
        address: HOST:PORT.
        options: The options of gRPC.
        tls: The files of TLS; None: clear text.
        name: The name that the server's certificate must have.

    Raises:
        ConfigError: A file of TLS cannot be read.
    """
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    authority, certificate, key = tls.read()
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    named = [*options, ("grpc.ssl_target_name_override", name)]
    return grpc.secure_channel(address, credentials, options=named)


class ServerCertificate:
    """The certificate of a server; every new connection gets the present content of its files."""

    def __init__(self, tls: TlsFiles) -> None:
        self._tls = tls
        self._stamp: Stamp = tls.stamp()

    def credentials(self) -> Any:
        """Return credentials that ask every client for its certificate.

        Raises:
            ConfigError: A file of TLS cannot be read.
        """
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(), self._newer, require_client_authentication=True
        )

    def _configuration(self) -> Any:
        authority, certificate, key = self._tls.read()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    def _newer(self) -> Any:
        """Return a new configuration if the files have changed; called for each connection."""
        try:
            stamp = self._tls.stamp()
            if stamp == self._stamp:
                return None
            configuration = self._configuration()
        except ConfigError as error:
            log.warning("%s; going on with the certificate of before", error)
            return None
        # The stamp is kept only after the files were read, so a failed read is repeated.
        self._stamp = stamp
        return configuration


def add_port(server: Any, address: str, tls: TlsFiles | None) -> int:
    """Make a server listen at HOST:PORT; return the port, which the system chooses for 0.

    Raises:
        RuntimeError: The server cannot listen there.
        ConfigError: A file of TLS cannot be read.
    """
    if tls is None:
        return int(server.add_insecure_port(address))
    return int(server.add_secure_port(address, ServerCertificate(tls).credentials()))


def why_refused(address: str, tls: TlsFiles | None) -> str:
    """Return why the TLS of this process and of a master do not fit; "" if they do.

    A server that is slow or cannot be reached is no problem of TLS.
    """
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # A server of gRPC ends a handshake that does not ask for HTTP/2.
    context.set_alpn_protocols(["h2"])
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if tls is None:
            context.check_hostname = False
            # This process speaks clear text, so any handshake shows that the server speaks TLS.
            context.verify_mode = ssl.CERT_NONE
        else:
            context.load_verify_locations(tls.authority)
            context.load_cert_chain(tls.certificate, tls.key)
        target = (host.strip("[]"), int(port))
        with (
            contextlib.closing(socket.create_connection(target, _PROBE_SECONDS)) as raw,
            context.wrap_socket(raw, server_hostname=MASTER_NAME) as secured,
        ):
            return _SPEAKS_TLS if tls is None else _refused_after_all(secured, tls)
    except ssl.SSLEOFError:
        return ""  # a proxy takes the call of a master that is not there, and hangs up
    except ssl.SSLError as error:
        return _words(error, tls)
    except (OSError, ValueError):
        return ""
    return ""


def _refused_after_all(secured: ssl.SSLSocket, tls: TlsFiles) -> str:
    """Return whether a server refuses this process: a server checks the client's certificate last.

    A server that accepts the process begins to speak HTTP/2. A server of gRPC that refuses it ends
    the connection without a reason.
    """
    try:
        if secured.recv(1):
            return ""
    except ssl.SSLError:
        raise
    except TimeoutError:
        return ""
    except OSError:
        pass
    return (
        f"it refuses this process's certificate ({tls.certificate}): it has expired, or is not "
        "signed by the authority of the master; does the address belong to this job?"
    )


_SPEAKS_TLS = (
    "it speaks TLS, and this process does not: is --tls the same in all processes of the job?"
)


def _words(error: ssl.SSLError, tls: TlsFiles | None) -> str:
    reason = (error.reason or "").upper()
    if "ALERT" in reason:
        if tls is None:
            return _SPEAKS_TLS
        why = {"EXPIRED": "expired, by its clock", "UNKNOWN_CA": "not signed by its authority"}
        cause = next((words for key, words in why.items() if key in reason), reason)
        return (
            f"it refuses this process's certificate ({tls.certificate}): {cause}; does the address "
            "belong to this job?"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        match error.verify_code:
            case 10:
                return "its certificate has expired; was it renewed, and do the clocks agree?"
            case 9:
                return "its certificate is not valid yet; do the clocks agree?"
            case 26 | 62:
                return (
                    f"its certificate is that of another role, expected the master's: "
                    f"{error.verify_message}"
                )
        return (
            "its certificate is not signed by this job's authority "
            f"({error.verify_message}); does the address belong to this job?"
        )
    if tls is None:
        return ""
    return (
        f"expected TLS, found something else ({reason}): is --tls the same in all processes of "
        "the job?"
    )
