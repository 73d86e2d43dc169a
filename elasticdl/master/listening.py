"""The port at which a master listens."""

from __future__ import annotations

import asyncio
import time

import grpc

from elasticdl.errors import ConfigError
from elasticdl.rpc.security import add_port
from elasticdl.runtime.addresses import is_loopback, join
from elasticdl.runtime.credentials.files import TlsFiles

_REBIND_SECONDS = 5.0  # time for the port of the master before to be free


async def take_port(
    server: grpc.aio.Server, host: str, before: int, wanted: int, tls: TlsFiles | None
) -> int:
    """Take the port of the master before, the one asked for, or any; return it.

    Args:
        server: Gets the port.
        host: The address of this machine.
        before: The port of the master before; 0: there was none.
        wanted: The port that the user asks for; 0: any.
        tls: Key and certificates for TLS; None: clear text.

    Raises:
        ConfigError: The port is taken.
    """
    port = before or wanted
    deadline = time.monotonic() + (_REBIND_SECONDS if before else 0.0)
    while True:
        try:
            return add_port(server, join(host, port), tls)
        except RuntimeError as error:
            if time.monotonic() >= deadline and port and not wanted:
                port = 0  # processes that knew the old port are gone, or will be given up
                continue
            if time.monotonic() >= deadline:
                raise ConfigError(_cannot_listen(host, port)) from error
            await asyncio.sleep(0.1)


def _cannot_listen(host: str, port: int) -> str:
    if port == 0:
        return f"--bind_address={host}: expected an address of this machine"
    other = "" if is_loopback(host) else f", or {host} is not an address of this machine"
    return (
        f"--master_port={port}: the port is taken by another process on this machine{other}; "
        "choose another one, or 0 for any that is free"
    )
