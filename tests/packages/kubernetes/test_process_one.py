"""Process 1 of a container hears SIGTERM although its role has installed no handler yet.

It is process 1 of a namespace of process identities, where the kernel has the same rule.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.packages.kubernetes.process_one import command_of

IMPORTS_FOR_EVER = """
import sys, threading
print(*sys.argv[1:], flush=True)
threading.Event().wait()
"""


def may_unshare():
    tried = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True)
    return tried.returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="needs the right to make a namespace (root)")
@pytest.mark.timeout(120)
def test_a_process_that_imports_ends_when_it_is_asked_to(tmp_path):
    (tmp_path / "slow.py").write_text(IMPORTS_FOR_EVER)
    command = command_of([sys.executable, "-P", "-u", "-m", "slow", "--index", "3"])
    with subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "--", *command],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as outer:
        try:
            assert outer.stdout is not None
            assert outer.stdout.readline() == "--index 3\n"  # the module sees its own arguments
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text()
            os.kill(int(children), signal.SIGTERM)
            assert outer.wait() == 128 + signal.SIGTERM
        finally:
            outer.kill()  # and the child with it
