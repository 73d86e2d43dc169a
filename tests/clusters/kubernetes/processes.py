"""Processes that die with the one that started them, each with a log of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def start(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when this thread ends; `log` takes its output."""
    # By setpriv, since Python should run nothing between fork and exec beside other threads.
    guarded = ["setpriv", "--pdeathsig", "KILL", "--", *(str(word) for word in command)]
    with log.open("ab") as output:
        return subprocess.Popen(
            guarded,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def stop(process: subprocess.Popen[bytes], grace_seconds: float = 5) -> None:
    """Ask a process to end, kill it after the grace period, and wait until it is gone."""
    process.terminate()
    try:
        process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_lines(log: Path, count: int = 15) -> str:
    """Return the end of a log, for an error message."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
