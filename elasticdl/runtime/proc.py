"""What Linux says of processes, in `/proc`."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

_MOST_THREADS = 200


def boot_id() -> str:
    """Return what the kernel has drawn when the machine was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot; None if there is none."""
    fields = stat_fields(pid)
    return None if fields is None else int(fields[19])


def seconds_since_start() -> float:
    """Return how long ago this process began."""
    ticks = start_time(os.getpid())
    assert ticks is not None, "a process sees itself"
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, age)


def resident_bytes() -> int:
    """Return how much memory this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds() -> float:
    """Return the processor time of this process and of those that it has started.

    A framework that compiles waits for a compiler, which is a process of its own.
    """
    return time.process_time() + sum(_tree_seconds(child) for child in _children(os.getpid()))


def _tree_seconds(pid: int) -> float:
    fields = stat_fields(pid)
    if fields is None:
        return 0.0
    # Of itself, and of those of its children that have ended.
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


def swapped_bytes() -> int:
    """Return what this machine has read back from its swap space since it was started."""
    try:
        read_back = re.search(r"^pswpin (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:  # a sandbox may hide it
        return 0
    return int(read_back[1] if read_back else 0) * os.sysconf("SC_PAGE_SIZE")


def core_wait_seconds() -> float:
    """Return for how long threads of this process have waited for a core, all together.

    Of very many threads some are looked at, and the rest is taken to be alike. Threads that have
    ended are not in it, so it may fall.
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
    """A thread of some process. priority: as of `nice`. seconds: of a processor core, so far."""

    thread_id: int
    name: str
    priority: int
    seconds: float


def threads_of(pid: int) -> list[RunningThread]:
    """Return the threads of a process, in the order in which they began; none if it has ended."""
    found = []
    for folder in Path(f"/proc/{pid}/task").glob("*"):
        try:
            head, _, rest = (folder / "stat").read_text().rpartition(")")
            name, fields = head.partition("(")[2], rest.split()
            nanoseconds = int((folder / "schedstat").read_text().split()[0])
        except OSError:
            continue  # it has ended, or this kernel does not count
        # Not by their numbers alone, which begin anew; the first thread has that of the process.
        number = int(folder.name)
        place = (int(fields[19]), number != pid, number)
        found.append((place, RunningThread(number, name, int(fields[16]), nanoseconds / 1e9)))
    return [thread for _, thread in sorted(found, key=lambda pair: pair[0])]


def busy_seconds() -> float:
    """Return for how long the cores of this machine have worked, all together, for anybody."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waits, irq, soft, steal = map(int, words)
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
