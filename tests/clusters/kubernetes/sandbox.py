"""One container as a process on this machine: what its image holds, and how it is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .control_groups import ControlGroup

REPOSITORY = Path(__file__).parents[3]
_ETC = "alternatives ca-certificates.conf group host.conf ld.so.cache ld.so.conf ld.so.conf.d"
_ETC += " localtime magic mime.types passwd protocols services ssl"


class StartError(Exception):
    """A container's command could not be run; the text says why."""


@dataclass(frozen=True)
class Mount:
    """A folder or file of the host, and where the container sees it."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True)
class Container:
    """What `container.py` needs to know, by the names that it reads."""

    command: Sequence[str]
    environment: Mapping[str, str]
    hostname: str
    root: str
    mounts: Sequence[Mount]
    control_groups: Sequence[str]
    working_folder: str = "/"
    user: int = 0
    group: int = 0
    groups: Sequence[int] = ()
    read_only_root: bool = False
    drops_capabilities: bool = False
    may_escalate: bool = True
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Image:
    """What every image holds: this machine's programs, this Python, and this checkout.

    A name that no image has is one of a registry in the reserved domain `.invalid`.
    """

    mounts: tuple[Mount, ...]
    links: Mapping[str, str]
    environment: Mapping[str, str]


def image(name: str) -> Image | None:
    """Return the image of a name, or None if it cannot be pulled."""
    if name.split("/")[0].split(":")[0].endswith(".invalid"):
        return None
    virtual = Path(sys.prefix)
    folders = {"/usr", sys.base_prefix, str(virtual), str(REPOSITORY)}
    links = {}
    for entry in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if os.path.islink(entry):
            links[entry] = os.readlink(entry)
        elif os.path.isdir(entry):
            folders.add(entry)
    etc = [f"/etc/{entry}" for entry in _ETC.split() if os.path.exists(f"/etc/{entry}")]
    # A folder inside another that is listed comes with it.
    tops = [one for one in folders if not any(one.startswith(f"{other}/") for other in folders)]
    return Image(
        mounts=tuple(Mount(path, path, True) for path in [*sorted(tops), *etc]),
        links=links,
        environment={
            "PATH": f"{sysconfig.get_path('scripts')}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
        },
    )


class Sandbox:
    """The network namespace that the containers of a pod share, held by a process that sleeps."""

    def __init__(self) -> None:
        command = ["setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "--", "sh", "-c"]
        self._process = subprocess.Popen(
            [*command, "echo; exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout
        self._process.stdout.readline()  # the namespace is there
        self.process_id = self._process.pid

    def close(self) -> None:
        """Give the namespace up; its wire goes with it."""
        self._process.kill()
        self._process.wait()


class Running:
    """A container that was started. `wait` must be called once, from any thread."""

    def __init__(
        self, container: Container, sandbox: Sandbox, log: Path, group: ControlGroup
    ) -> None:
        """Start it; it ends when the calling thread does.

        Raises:
            StartError: The command does not exist, or a mount failed.
        """
        self._group = group
        reader, writer = os.pipe()
        script = Path(__file__).with_name("container.py")
        command = ["setpriv", "--pdeathsig", "KILL", "--"]
        command += ["nsenter", "--target", str(sandbox.process_id), "--net", "--"]
        command += [sys.executable, "-E", "-s", "-S", str(script), str(writer)]
        with log.open("ab") as output, os.fdopen(reader) as report:
            self._shim = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(writer,),
                start_new_session=True,
            )
            os.close(writer)
            assert self._shim.stdin
            with self._shim.stdin as stdin:
                stdin.write(json.dumps(asdict(container)).encode())
            lines = report.read().splitlines()  # until the command runs, which closes the pipe
        failed = [line for line in lines if line.startswith("error ")]
        if failed or not lines:
            self._shim.wait()
            raise StartError(failed[0].removeprefix("error ") if failed else "it was killed")
        self.process_id = int(lines[0].removeprefix("running "))

    def wait(self) -> int:
        """Return its exit code, which is 128 + N if it was killed by signal N."""
        code = self._shim.wait()
        return code if code >= 0 else 128 - code

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed a process of it for want of memory."""
        return self._group.out_of_memory_kills() > 0

    def signal(self, number: int) -> None:
        """Send a signal to its first process; nothing happens if it is gone."""
        if self._shim.poll() is None:
            try:
                os.kill(self.process_id, number)
            except ProcessLookupError:
                return
