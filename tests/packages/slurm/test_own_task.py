"""The address under which other nodes reach a node, whatever the node itself makes of its name."""

import socket

import pytest

from elasticdl.errors import LaunchError
from elasticdl.packages.slurm import commands, own_task

V4, V6 = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    ("name", "found", "address"),
    [
        ("node1", [(V4, "10.0.0.1")], "10.0.0.1"),
        ("node1", [(V4, "127.0.1.1"), (V4, "10.0.0.1")], "10.0.0.1"),
        # Debian writes this into /etc/hosts; others ask a server for the name.
        ("node1", [(V4, "127.0.1.1")], "node1"),
        ("node1", [(V6, "::1"), (V6, "fe80::1"), (V4, "10.0.0.1")], "10.0.0.1"),
        ("node1", [(V6, "2001:db8::1")], "2001:db8::1"),
        ("localhost", [(V6, "::1"), (V4, "127.0.0.1")], "127.0.0.1"),
        ("127.0.0.1", [(V4, "127.0.0.1")], "127.0.0.1"),
    ],
)
def test_a_node_is_reached_from_elsewhere(monkeypatch, name, found, address):
    kind = socket.SOCK_STREAM
    answers = [(family, kind, 6, "", (host, 0)) for family, host in found]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **others: answers)
    monkeypatch.setattr(commands, "address_of_node", lambda node: name)
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    assert own_task.address() == address


def test_a_node_that_nobody_can_resolve_has_its_name(monkeypatch):
    def nobody(*words, **others):
        raise LaunchError("scontrol: away")

    monkeypatch.setattr(commands, "address_of_node", nobody)
    monkeypatch.setattr(socket, "gethostname", lambda: "node1.invalid")
    monkeypatch.setenv("SLURMD_NODENAME", "node1")
    assert own_task.address() == "node1.invalid"
