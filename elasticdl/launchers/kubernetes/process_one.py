"""`python -m elasticdl.launchers.kubernetes.process_one MODULE ...`: what runs first in each pod.

The kernel keeps signals from process 1 of a container that it has no handler for. Python has none
for SIGTERM, and a role installs its own only when it has imported all that it needs, which takes
seconds on a busy node. Until then a pod that makes room for others would hold its processors for
the whole grace period. Here SIGTERM ends the process from the first moments on.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Sequence

_MODULE = "elasticdl.launchers.kubernetes.process_one"
_ASKED_TO_END = 128 + signal.SIGTERM


def command_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs `python ... -m MODULE ...` as process 1 of a container."""
    words = list(command)
    words.insert(words.index("-m") + 1, _MODULE)
    return tuple(words)


def main() -> None:
    """Run a module as `python -m` does; SIGTERM ends it until it decides otherwise."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(_ASKED_TO_END))
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
