"""What holds for all tests."""

import signal

import pytest


def pytest_configure():
    """Take Ctrl-C as usual, also where a script in the background has it ignored.

    Tests send it to processes that they start, and those inherit what is ignored.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory):
    """An etcd that nobody kills; each test takes a prefix of its own."""
    with _new_etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def etcd_of_its_own(tmp_path):
    """An etcd that the test may kill."""
    with _new_etcd(tmp_path / "etcd") as server:
        yield server


def _new_etcd(folder):
    from scripts.etcd import EtcdServer

    try:
        return EtcdServer(folder)
    except FileNotFoundError as error:
        pytest.skip(str(error))
