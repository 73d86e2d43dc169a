"""Jobs under faults that `scripts/chaos` draws; it judges the counts by itself."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_chaos(seed, faults, directory, seconds=380, **flags):
    """Run a job, whose counts must be exact; return its summary."""
    flags = {"seed": seed, "faults": faults, "dir": directory, **flags}
    with subprocess.Popen(
        [sys.executable, "-m", "scripts.chaos", *(f"--{n}={value}" for n, value in flags.items())],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        finally:  # the command that it has started ends too, and the job with it
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    assert "every count is exact" in said
    return json.loads((directory / "summary.json").read_text())
