"""Runs one container: reads what it is from stdin, builds its root, runs it, ends as it ends.

Started by `pod.py` inside the pod's network namespace, as a script without site packages, so that
it is there in some milliseconds. Two processes: this one stays outside and waits; the child is
process 1 of the container, so that nothing which the container started outlives it.

One line is written to the file descriptor that argv names: `running PID`, or `error WHY`.
"""

import json
import os
import signal
import sys
from typing import Any

import kernel

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_SAME_AS_A_SHELL = 128


def main() -> None:
    """Run the container described on stdin."""
    report = int(sys.argv[1])
    container = json.load(sys.stdin)
    namespaces = kernel.NEW_MOUNTS | kernel.NEW_HOST_NAME | kernel.NEW_IPC
    kernel.unshare(namespaces | kernel.NEW_PROCESS_IDS)
    child = os.fork()
    if child == 0:
        try:
            _become(container, report)
        except BaseException as error:
            os.write(report, f"error {type(error).__name__}: {error}\n".encode())
            os._exit(_SAME_AS_A_SHELL)
    os.set_inheritable(report, False)
    os.close(report)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else _SAME_AS_A_SHELL - code)


def _become(container: dict[str, Any], report: int) -> None:
    """Turn this process, number 1 of its namespace, into the container's command."""
    host_id = os.readlink("/proc/self")  # the host's /proc is still there
    for file in container["control_groups"]:
        with open(file, "w") as tasks:
            tasks.write("0")  # this process
    _build_root(container)
    with open("/proc/sys/kernel/hostname", "w") as file:
        file.write(container["hostname"])
    os.makedirs(container["working_folder"], exist_ok=True)
    if container["read_only_root"]:
        kernel.mount("", "/", flags=kernel.BIND | kernel.REMOUNT | kernel.READ_ONLY)
    os.chdir(container["working_folder"])
    _take_rights(container)
    kernel.die_with_parent()  # after the change of user, which forgets it
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o022)
    os.setsid()
    os.write(report, f"running {host_id}\n".encode())
    os.set_inheritable(report, False)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    environment = container["environment"]
    try:
        os.execvpe(container["command"][0], container["command"], environment)
    except OSError as error:
        raise OSError(f"cannot run {container['command'][0]}: {error.strerror}") from None


def _build_root(container: dict[str, Any]) -> None:
    """Build the container's file system on a root of its own, in memory."""
    root = container["root"]
    kernel.mount("", "/", flags=kernel.RECURSIVE | kernel.PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", options="mode=0755")
    for folder, mode in (("proc", 0o555), ("sys", 0o555), ("dev", 0o755), ("etc", 0o755)):
        os.mkdir(f"{root}/{folder}", mode)
    for folder in ("tmp", "var/tmp"):
        os.makedirs(f"{root}/{folder}")
        os.chmod(f"{root}/{folder}", 0o1777)
    for link, target in container["links"].items():
        os.makedirs(os.path.dirname(f"{root}{link}"), exist_ok=True)
        os.symlink(target, f"{root}{link}")
    kernel.mount("proc", f"{root}/proc", "proc")
    kernel.mount("sysfs", f"{root}/sys", "sysfs", flags=kernel.READ_ONLY)
    _build_devices(f"{root}/dev")
    for each in container["mounts"]:
        target = root + each["target"]
        _make_place(each["source"], target)
        kernel.bind(each["source"], target, each["read_only"])
    kernel.become_root(root)


def _build_devices(folder: str) -> None:
    kernel.mount("tmpfs", folder, "tmpfs", flags=kernel.NO_SETUID, options="mode=0755")
    for name in _DEVICES:
        _make_place(f"/dev/{name}", f"{folder}/{name}")
        kernel.bind(f"/dev/{name}", f"{folder}/{name}", read_only=False)
    os.mkdir(f"{folder}/shm")
    kernel.mount("tmpfs", f"{folder}/shm", "tmpfs", options="mode=1777,size=64m")
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"{folder}/{name}")


def _make_place(source: str, target: str) -> None:
    """Make the empty folder or file that something is mounted on."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if not os.path.lexists(target):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


def _take_rights(container: dict[str, Any]) -> None:
    if container["drops_capabilities"]:
        kernel.drop_capabilities()
    os.setgroups(container["groups"])
    os.setresgid(*[container["group"]] * 3)
    os.setresuid(*[container["user"]] * 3)
    if not container["may_escalate"]:
        kernel.give_up_new_privileges()


if __name__ == "__main__":
    main()
