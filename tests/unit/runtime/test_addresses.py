"""Where processes listen, and where others find them."""

import pytest

from elasticdl.errors import ConfigError
from elasticdl.runtime.addresses import Listening, is_loopback, join, port_of


@pytest.mark.parametrize(
    ("listening", "address"),
    [
        (Listening(), "127.0.0.1:5000"),
        (Listening("10.1.2.3"), "10.1.2.3:5000"),
        (Listening("0.0.0.0", "10.1.2.3"), "10.1.2.3:5000"),
        (Listening("::", "fd00::7"), "[fd00::7]:5000"),
        (Listening("0.0.0.0", "job-master.default.svc"), "job-master.default.svc:5000"),
    ],
)
def test_others_are_told_the_advertised_address(listening, address):
    listening.check()
    assert listening.at(5000) == address
    assert port_of(address) == 5000


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_address_of_a_machine_is_none_to_connect_to(host):
    with pytest.raises(ConfigError, match=f"--bind_address={host} .* --advertise_address"):
        Listening(host).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_loopback_is_not_exposed(host):
    assert is_loopback(host)
    assert not Listening(host).is_exposed


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "worker.example"])
def test_all_else_is_exposed(host):
    assert Listening(host, "me").is_exposed


def test_only_ipv6_is_bracketed():
    assert (join("a.b", 1), join("::1", 1)) == ("a.b:1", "[::1]:1")
