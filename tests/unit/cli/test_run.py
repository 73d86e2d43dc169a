"""How a job ends that this process computes."""

import signal

import pytest

from elasticdl.cli.run import ends_in_order


@pytest.fixture
def after_sigterm():
    """Return a function that sends SIGTERM to a job; it returns what another one would do."""

    def send():
        with ends_in_order():
            try:
                signal.raise_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                return signal.getsignal(signal.SIGTERM)

    return send


def test_sigterm_ends_a_job_in_this_process_as_ctrl_c_does_and_at_once_the_second_time(
    after_sigterm,
):
    before = signal.getsignal(signal.SIGTERM)
    assert after_sigterm() is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is before
