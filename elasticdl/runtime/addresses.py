"""Addresses at which processes listen and are found."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from elasticdl.errors import ConfigError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Listening:
    """The address at which a process listens, and the one at which others find it.

    Both are hosts: an address of this machine, or a name for one. The system chooses the port when
    the process begins to listen.

    bind: 0.0.0.0 or :: for every address of this machine.
    advertise: Address or name for others; "" if it is the same as `bind`. The master of a job on a
        cluster has a name here, for example.
    """

    bind: str = LOOPBACK
    advertise: str = ""

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self.bind)

    def at(self, port: int) -> str:
        """Return the address for other processes, HOST:PORT."""
        return join(self.advertise or self.bind, port)

    def check(self) -> None:
        """Make sure that there is an address for other processes.

        Raises:
            ConfigError: The process listens everywhere, and `advertise` is "".
        """
        if not self.advertise and _is_everywhere(self.bind):
            raise ConfigError(
                f"--bind_address={self.bind} stands for all addresses of this machine, and others "
                "cannot connect to that: give --advertise_address too, the address or name under "
                "which they find this process"
            )


def join(host: str, port: int) -> str:
    """Return HOST:PORT, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_of(address: str) -> int:
    """Return the port of HOST:PORT."""
    return int(address.rpartition(":")[2])


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host. Names other than localhost give False."""
    address = _parse(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_everywhere(host: str) -> bool:
    address = _parse(host)
    return address is not None and address.is_unspecified


def _parse(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
