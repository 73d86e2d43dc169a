"""The system calls that Python 3.11 does not offer: namespaces, mounts, and ties to a parent.

`container.py` runs without site packages and imports this as a plain module beside it.
"""

import ctypes
import os
import signal

NEW_MOUNTS = 0x00020000
NEW_HOST_NAME = 0x04000000
NEW_IPC = 0x08000000
NEW_PROCESS_IDS = 0x20000000

READ_ONLY = 0x1
NO_SETUID = 0x2
NO_DEVICES = 0x4
REMOUNT = 0x20
BIND = 0x1000
RECURSIVE = 0x4000
PRIVATE = 1 << 18

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_DETACH = 2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(namespaces: int) -> None:
    """Leave the namespaces of the parent for new ones."""
    _check(_libc.unshare(namespaces), "unshare", hex(namespaces))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount `source` at `target`; `kind` is the file system's, empty for a bind."""
    words = [text.encode() or None for text in (source, target, kind)]
    result = _libc.mount(*words, ctypes.c_ulong(flags), options.encode() or None)
    _check(result, "mount", source, target, kind, options)


def bind(source: str, target: str, read_only: bool) -> None:
    """Show a folder or file at a second place too."""
    mount(source, target, flags=BIND | RECURSIVE)
    if read_only:
        # Flags that the source is locked to must be said again; what it has beyond them stays.
        held = os.statvfs(target).f_flag & (NO_SETUID | NO_DEVICES)
        mount("", target, flags=BIND | REMOUNT | READ_ONLY | held)


def become_root(folder: str) -> None:
    """Make a mounted folder the root of this mount namespace; the old root is out of reach."""
    os.chdir(folder)
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    _check(_libc.syscall(number, b".", b"."), "pivot_root", folder)
    _check(_libc.umount2(b".", _DETACH), "umount", "the old root")
    os.chdir("/")


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def give_up_new_privileges() -> None:
    """Have set-user-id programs run without their owner's rights from here on."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drop every capability from what a program run from here on can have."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in range(last + 1):
        _prctl(_PR_CAPBSET_DROP, capability)


def _prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl", str(option))


def _check(result: int, *words: str) -> None:
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{' '.join(words)}: {os.strerror(code)}")
