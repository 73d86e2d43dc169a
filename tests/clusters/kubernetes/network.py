"""The network of a cluster: one namespace as its router, one for each pod, joined by wires.

    pod 10.X.N.P --- router 10.X.0.1 --- host 10.X.255.1 (API server, logs of pods, tests)

Nothing of it outlives its processes: with the last process of a namespace go its wires, and with
them the host's route. Every packet between two pods passes the router, where it can be watched.
"""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import dataclass

_ATTEMPTS = 20


@dataclass(frozen=True)
class Network:
    """The addresses 10.X.0.0/16 of one cluster. `router` is the id of the process that routes."""

    x: int
    router: int

    @property
    def host(self) -> str:
        """Where the pods reach what runs on the host."""
        return f"10.{self.x}.255.1"

    @property
    def loopback(self) -> str:
        """An address of the host that no pod reaches."""
        return f"127.{self.x}.255.1"

    @property
    def gateway(self) -> str:
        """The router's address, as the pods see it."""
        return f"10.{self.x}.0.1"

    @property
    def services(self) -> str:
        """The range of cluster addresses of services."""
        return f"10.{self.x}.128.0/18"

    def pod(self, node: int, pod: int) -> str:
        """Return the address of a pod: 0 <= node < 126, 0 <= pod < 250."""
        return f"10.{self.x}.{node + 1}.{pod + 2}"

    def pods_of(self, node: int) -> str:
        """Return the range of the addresses of a node's pods."""
        return f"10.{self.x}.{node + 1}.0/24"

    def in_router(self, command: list[str]) -> list[str]:
        """Return a command line that runs in the router's network."""
        return ["nsenter", "--target", str(self.router), "--net", "--", *command]

    def add_pod(self, sandbox: int, name: str, address: str) -> None:
        """Wire the network namespace of a process to the router.

        Args:
            sandbox: The id of the process.
            name: The router's end of the wire, at most 15 characters.
            address: The pod's.
        """
        _ip(
            self.router,
            f"link add {name} type veth peer name eth0 netns {sandbox}",
            f"link set {name} up",
            f"route add {address}/32 dev {name}",
        )
        _ip(
            sandbox,
            "link set lo up",
            f"addr add {address}/32 dev eth0",
            "link set eth0 up",
            f"route add {self.gateway} dev eth0",
            f"route add default via {self.gateway}",
        )

    def cut(self, node: int) -> None:
        """Cut the wires of a node's pods. Connections stay open, and silent."""
        for name in self._wires(node):
            self._change(node, name, f"link set {name} down")

    def mend(self, node: int) -> None:
        """Mend the wires of a node's pods."""
        for name in self._wires(node):
            address = self.pod(node, int(name.partition("p")[2]))
            lines = f"link set {name} up", f"route replace {address}/32 dev {name}"
            self._change(node, name, *lines)

    def _change(self, node: int, name: str, *lines: str) -> None:
        """Change a wire, unless its pod ends meanwhile."""
        try:
            _ip(self.router, *lines)
        except RuntimeError:
            if name in self._wires(node):
                raise

    def _wires(self, node: int) -> list[str]:
        listed = _nsenter(self.router, ["ip", "-json", "link"], "")
        names = [str(each["ifname"]) for each in json.loads(listed)]
        return [name for name in names if name.startswith(f"n{node}p")]


def connect(router: int) -> Network:
    """Make a process' network namespace the router of a network that no other cluster uses."""
    used = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
    free = [x for x in range(64, 250) if f" 10.{x}." not in f" {used}"]
    for x in random.SystemRandom().sample(free, _ATTEMPTS):
        network = Network(x, router)
        name = f"edl{router}"
        try:
            # Two clusters that choose the same X at once: one of them cannot add this route.
            _ip(
                None,
                f"link add {name} type veth peer name host netns {router}",
                f"link set {name} up",
                f"addr add {network.host}/30 dev {name}",
                f"route add 10.{x}.0.0/16 via 10.{x}.255.2",
            )
        except subprocess.CalledProcessError:
            subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)
            continue
        _ip(
            router,
            "link set lo up",
            f"addr add {network.gateway}/32 dev lo",
            f"addr add 10.{x}.255.2/30 dev host",
            "link set host up",
            f"route add default via {network.host}",
        )
        # Every cluster address of a service is the router's, for the proxy that runs there.
        _ip(router, f"route add local {network.services} dev lo")
        _nsenter(router, ["sysctl", "-qw", "net.ipv4.ip_forward=1"], "")
        return network
    raise RuntimeError("found no free network among 10.64.0.0 to 10.249.0.0: see `ip route`")


def _ip(namespace_of: int | None, *lines: str) -> None:
    command = ["ip", "-batch", "-"]
    text = "\n".join(lines)
    if namespace_of is None:
        subprocess.run(command, input=text, check=True, capture_output=True, text=True)
    else:
        _nsenter(namespace_of, command, text)


def _nsenter(process: int, command: list[str], text: str) -> str:
    whole = ["nsenter", "--target", str(process), "--net", "--", *command]
    try:
        done = subprocess.run(whole, input=text, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{' '.join(whole)}: {error.stderr.strip()}: {text}") from None
    return done.stdout
