"""Outlives a cluster by a moment, to remove what the kernel does not remove by itself.

    python -m tests.clusters.kubernetes.janitor FOLDER CONTROL_GROUP

It is the process of the cluster's router, and waits for the end of its stdin, which comes even when
the cluster's process is killed.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time

from .control_groups import ControlGroup

_ATTEMPTS = 100
_WAIT_SECONDS = 0.1


def main() -> None:
    """Wait for the end of the cluster, and tidy up."""
    folder, name = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    print("ready", flush=True)
    sys.stdin.read()
    for _ in range(_ATTEMPTS):
        # The last processes are on their way out.
        try:
            ControlGroup(name).kill()
            ControlGroup(name).remove()
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            time.sleep(_WAIT_SECONDS)
            continue
        return
    sys.exit(f"control group {name} still has processes")


if __name__ == "__main__":
    main()
