"""Finds an engine that builds images (docker, podman or buildah), and runs it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from elasticdl.errors import ElasticdlError

ENGINES = ("docker", "podman", "buildah")  # the first that is found is taken
_PROBE_SECONDS = 30.0


class EngineError(ElasticdlError):
    """No program that builds images can be used here."""


def find(which: Callable[[str], str | None] = shutil.which) -> str:
    """Return the name of the engine to use: docker, else podman, else buildah.

    Raises:
        EngineError: None of them is there, or Docker's daemon cannot be used.
    """
    engine = next((name for name in ENGINES if which(name)), None)
    if engine is None:
        raise EngineError(
            "expected docker, podman or buildah on the PATH, to build and push images; found none "
            "of them: install one (on Debian: apt-get install docker.io, podman or buildah)"
        )
    if engine == "docker":
        _check_daemon()
    return engine


def build_command(engine: str, image: str, folder: Path) -> list[str]:
    """Return the command that builds an image of the Dockerfile in a folder."""
    dockerfile = folder / "Dockerfile"
    return [engine, "build", f"--tag={image}", f"--file={dockerfile}", str(folder)]


def push_command(engine: str, image: str) -> list[str]:
    """Return the command that pushes an image to the registry in its name."""
    return [engine, "push", image]


def run(command: Sequence[str]) -> int:
    """Run an engine and return its exit code; its output goes where this program's output goes.

    Ctrl-C reaches the engine too. The engine then ends by itself, and this function waits for it.
    """
    with subprocess.Popen(command) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise
    # A negative code is a signal; the shell adds 128 to the signal's number.
    return 128 - code if code < 0 else code


def _check_daemon() -> None:
    """Refuse an engine whose daemon does not answer, with a shorter message than Docker's own."""
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"docker: expected an answer of its daemon within {_PROBE_SECONDS:g} s, found none: "
            "is it overloaded or being started? See DOCKER_HOST and `docker info`"
        ) from None
    if asked.returncode == 0:
        return
    said = asked.stderr.strip()
    # Docker has no exit codes for these causes, only its words.
    if "permission denied" in said.lower():
        remedy = (
            "this user may not use Docker: join the group docker and log in again, or take podman"
        )
    elif "cannot connect" in said.lower() or "error during connect" in said.lower():
        remedy = "its daemon is not running: start it (systemctl start docker), or take podman"
    else:
        remedy = "see `docker info`"
    raise EngineError(f"docker: {remedy}. Docker said: {said}")
