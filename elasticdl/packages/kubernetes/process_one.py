"""`python -m elasticdl.packages.kubernetes.process_one MODULE ...`: the first program of each pod.

The kernel ignores a signal to process 1 of a container if the process has no handler for it. Python
has no handler for SIGTERM. A role installs its own handler only after its imports, which take
seconds on a busy node. Until then, a pod that must make room would hold its processors for the
whole grace period. Here SIGTERM ends the process from the first moments on. A master may be asked
to end because its Job was suspended, so it looks for that before it ends.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Sequence

_MODULE = "elasticdl.packages.kubernetes.process_one"
_ASKED_TO_END = 128 + signal.SIGTERM
_OF_MASTER = ("elasticdl.packages.kubernetes.master_pod", "elasticdl.master")
_SUSPENSION = "elasticdl.packages.kubernetes.suspension"


def command_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs `python ... -m MODULE ...` as process 1 of a container."""
    words = list(command)
    words.insert(words.index("-m") + 1, _MODULE)
    return tuple(words)


def main() -> None:
    """Run a module as `python -m` does; SIGTERM ends it until it decides otherwise."""
    del sys.argv[0]
    is_master = sys.argv[0] in _OF_MASTER
    signal.signal(signal.SIGTERM, _look_for_suspension if is_master else _end)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end(_number: int, _frame: object) -> None:
    os._exit(_ASKED_TO_END)


def _look_for_suspension(_number: int, _frame: object) -> None:
    # The check runs in a new program: this process may be in the middle of an import.
    os.execv(sys.executable, [sys.executable, "-P", "-u", "-m", _SUSPENSION])


if __name__ == "__main__":
    main()
