"""Reads facts about processes and the machine from Linux' `/proc`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_MOST_THREADS = 200  # each costs a read of a file


def boot_id() -> str:
    """Return the random id that the kernel made at the start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None: no such process."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[19])


def seconds_since_start() -> float:
    """Return the age of this process."""
    ticks = start_time(os.getpid())
    assert ticks is not None, "a process sees itself"
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, age)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds() -> float:
    """Return the processor time of this process and of the processes that it has started.

    They count because a framework may compile in a separate process and wait for that.
    """
    return time.process_time() + sum(_tree_seconds(child) for child in _children(os.getpid()))


def _tree_seconds(pid: int) -> float:
    fields = stat_fields(pid)
    if fields is None:
        return 0.0
    # The fields count the process itself and its children that have ended.
    own = sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return own + sum(_tree_seconds(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in thread.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
    return found


def core_wait_seconds() -> float:
    """Return the time that the threads of this process have waited for a core, summed.

    A process with very many threads is estimated from a part of them. Threads that have ended do
    not count, so the sum may fall.
    """
    threads = os.listdir("/proc/self/task")
    nanoseconds = 0
    for thread in threads[:_MOST_THREADS]:
        try:
            words = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()
        except OSError:
            continue  # it has ended, or this kernel does not count
        nanoseconds += int(words[1])
    return nanoseconds / 1e9 * max(1.0, len(threads) / _MOST_THREADS)


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of `/proc/PID/stat` from the state on; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command's name in parentheses and may hold anything.
    return stat.rpartition(")")[2].split()


@dataclass(frozen=True, slots=True)
class RunningThread:
    """A thread of a process, with its `nice` priority and its seconds of processor time so far."""

    thread_id: int
    name: str
    priority: int
    seconds: float


def threads_of(pid: int) -> list[RunningThread]:
    """Return the threads of a process in the order of their start; none if it has ended."""
    found = []
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        try:
            head, _, rest = (folder / "stat").read_text().rpartition(")")
            name, fields = head.partition("(")[2], rest.split()
            nanoseconds = int((folder / "schedstat").read_text().split()[0])
        except OSError:
            continue  # it has ended, or this kernel does not count
        # The start time comes first, since the kernel uses numbers again. The first thread has
        # the number of the process.
        number = int(folder.name)
        place = (int(fields[19]), number != pid, number)
        found.append((place, RunningThread(number, name, int(fields[16]), nanoseconds / 1e9)))
    return [thread for _, thread in sorted(found, key=lambda pair: pair[0])]


def busy_seconds() -> float:
    """Return the time that the cores of this machine have worked for all processes, summed."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waits, irq, soft, steal = map(int, words)
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
