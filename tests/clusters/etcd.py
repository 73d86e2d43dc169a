"""An etcd server of one member on this machine, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import time
from pathlib import Path

from tests.clusters.kubernetes.binaries import binary

_READY_SECONDS = 120.0
_LOOK_SECONDS = 0.02
_FIRST_PORT = 10_000
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class EtcdServer:
    """A server that can be killed, and started again with its data at its address."""

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", certificate: Path | None = None
    ) -> None:
        """Prepare it; `start` starts it.

        Args:
            folder: Takes its data and its log.
            host: The address that its clients use.
            certificate: With its key, in PEM: it speaks TLS with its clients.

        Raises:
            FileNotFoundError: Etcd is not built; says how to.
        """
        self._binary = binary("etcd", "etcd")
        self._folder = folder
        self._host = host
        self._certificate = certificate
        self._client_port, self._peer_port = free_ports(host, "127.0.0.1")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Where it listens: `host:port`."""
        return f"{self._host}:{self._client_port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        scheme = "http" if self._certificate is None else "https"
        client, peer = f"{scheme}://{self.endpoint}", f"http://127.0.0.1:{self._peer_port}"
        flags = {
            "data-dir": self._folder / "data",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "error",
        }
        if self._certificate is not None:
            flags |= {"cert-file": self._certificate, "key-file": self._certificate}
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "etcd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, *(f"--{name}={value}" for name, value in flags.items())],
                stdout=log,
                stderr=log,
            )
        self._wait()

    def kill(self) -> None:
        """Kill it with -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> EtcdServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection((self._host, self._client_port), timeout=1.0).close()
                return
            except OSError:
                time.sleep(_LOOK_SECONDS)
        self.kill()
        log = (self._folder / "etcd.log").read_text(errors="replace")
        raise RuntimeError(
            f"etcd did not come up in {_READY_SECONDS:.0f} s; its log: {log[-2000:]}"
        )


def free_ports(*hosts: str) -> list[int]:
    """Return a port for each host that nobody listens at now.

    The system gives none of them to a connection, nor to whoever takes any port. So they are still
    free when a server begins, or begins again.
    """
    first_given = int(_PORT_RANGE.read_text().split()[0])
    chance, ports = random.SystemRandom(), list[int]()
    for host in hosts:
        while True:
            port = chance.randrange(_FIRST_PORT, first_given)
            with contextlib.suppress(OSError):
                socket.create_server((host, port)).close()
                if port not in ports:
                    ports.append(port)
                    break
    return ports
