"""What holds for all tests."""

import signal


def pytest_configure():
    """Take Ctrl-C as usual, also where a script in the background has it ignored.

    Tests send it to processes that they start, and those inherit what is ignored.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
