"""Keeps the wanted, running and ended processes of a job in files that its nodes share.

Slurm's tasks are **places** for processes. The master writes which process it wants, and asks for a
place for it. A place that begins takes one of the wanted processes of its role. So a place that
Slurm has queued again is as good as a new one, and no place runs a process that is not wanted any
more.

A process has one file, named by its reference, in one of three folders. The file goes from one
folder to the next by a rename, which only one place can do. The folders are read in this order, so
no file is missed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from elasticdl.job import Role
from elasticdl.launchers.base import Exited, ExitReason, ProcessHandle
from elasticdl.runtime import process
from elasticdl.runtime.secret_files import make_private

FOLDER = "slurm"
"""The name of the folder in a job's folder."""

FREE_SECONDS = 15.0
"""A place whose process was killed waits so long for the next process."""

_WANTED, _RUNNING, _ENDED = "wanted", "running", "ended"
_ARRAYS, _MASTER, _ALIVE = "arrays", "master", "alive"


@dataclass(frozen=True, slots=True)
class Occupied:
    """A place has taken a process: the task of Slurm, and how often the task began anew."""

    task: str
    num_restarts: int


class Roster:
    """The files of one job."""

    def __init__(self, job_dir: Path) -> None:
        self._folder = job_dir / FOLDER

    def prepare(self) -> None:
        """Make the folders.

        Raises:
            OSError: The folders cannot be made.
        """
        for name in (_WANTED, _RUNNING, _ENDED):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        make_private(self._folder)

    # --- the master's side -----------------------------------------------------------------------

    def want(self, ref: str, command: Iterable[str]) -> None:
        """Want a process.

        Raises:
            OSError: The file cannot be written.
        """
        # The file is written elsewhere first, since a place takes any file that it sees.
        path = self._folder / ref
        process.write_whole(path, json.dumps(list(command)))
        path.rename(self._folder / _WANTED / ref)

    def unwant(self, ref: str) -> bool:
        """Want a process no more; return False if a place has taken it already."""
        try:
            (self._folder / _WANTED / ref).unlink()
        except FileNotFoundError:
            return False
        return True

    def wanted(self) -> set[str]:
        """Return the processes that wait for a place."""
        return set(self._names(_WANTED))

    def running(self) -> dict[str, Occupied]:
        """Return the processes that have a place; some may have ended."""
        found = {}
        for name in self._names(_RUNNING):
            ref, task, restarts = name.split("@")
            found[ref] = Occupied(task, int(restarts))
        return found

    def ended(self) -> set[str]:
        """Return the processes that have ended."""
        return set(self._names(_ENDED))

    def end_of(self, handle: ProcessHandle) -> Exited:
        """Return how a process of `ended` has ended."""
        try:
            said = json.loads((self._folder / _ENDED / handle.ref).read_text())
            return Exited(handle, ExitReason(said["reason"]), said["code"], str(said["words"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Exited(handle, ExitReason.UNKNOWN, None)

    def forget(self, ref: str, occupied: Occupied | None) -> None:
        """Remove the files of a process that has ended."""
        (self._folder / _ENDED / ref).unlink(missing_ok=True)
        if occupied is not None:
            (self._folder / _RUNNING / _taken(ref, occupied)).unlink(missing_ok=True)

    def arrays(self) -> dict[str, Role]:
        """Return the jobs of Slurm that have places, each with its role."""
        try:
            lines = (self._folder / _ARRAYS).read_text().splitlines()
        except FileNotFoundError:
            return {}
        return {job: Role(role) for job, role in (line.split() for line in lines)}

    def write_arrays(self, arrays: dict[str, Role]) -> None:
        """Write which jobs of Slurm have places.

        Raises:
            OSError: The file cannot be written.
        """
        lines = "".join(f"{job} {role}\n" for job, role in arrays.items())
        process.write_whole(self._folder / _ARRAYS, lines)

    def beat(self) -> None:
        """Write that the master lives."""
        (self._folder / _ALIVE).touch()

    # --- the side of a place ---------------------------------------------------------------------

    def take(self, role: Role, occupied: Occupied) -> tuple[ProcessHandle, list[str]] | None:
        """Take a wanted process, and return its command line; None if no process is wanted."""
        for handle in sorted(map(handle_of, self.wanted()), key=lambda one: one.index):
            if handle.role is not role:
                continue
            path = self._folder / _RUNNING / _taken(handle.ref, occupied)
            try:
                (self._folder / _WANTED / handle.ref).rename(path)
            except FileNotFoundError:
                continue  # another place was faster
            return handle, json.loads(path.read_text())
        return None

    def tell_end(self, end: Exited) -> None:
        """Write how the taken process has ended.

        Raises:
            OSError: The file cannot be written.
        """
        words = {"reason": str(end.reason), "code": end.code, "words": end.last_words}
        path = self._folder / end.handle.ref
        process.write_whole(path, json.dumps(words))
        path.rename(self._folder / _ENDED / end.handle.ref)

    def last_beat(self) -> float:
        """Return the time of the last sign of a master, by the file system's clock; 0.0 if none."""
        try:
            return (self._folder / _ALIVE).stat().st_mtime
        except OSError:
            return 0.0

    # --- of the master's own job -----------------------------------------------------------------

    def master(self) -> str:
        """Return the job of Slurm that runs the master; "" if there was none."""
        try:
            return (self._folder / _MASTER).read_text().strip()
        except FileNotFoundError:
            return ""

    def write_master(self, job: str) -> None:
        """Write which job of Slurm runs the master.

        Raises:
            OSError: The file cannot be written.
        """
        process.write_whole(self._folder / _MASTER, f"{job}\n")

    def _names(self, folder: str) -> list[str]:
        return [path.name for path in (self._folder / folder).iterdir()]


def handle_of(ref: str) -> ProcessHandle:
    """Return the process of a reference, ROLE-INDEX-DRAW.

    Raises:
        ValueError: The text has another form.
    """
    role, index, _ = ref.rsplit("-", 2)
    return ProcessHandle(Role(role), int(index), ref)


def is_free_after(end: Exited) -> bool:
    """Return whether a place takes another process after an end like this.

    A place takes none after a failed process: the node may be the cause.
    """
    return end.reason in (ExitReason.KILLED, ExitReason.OUT_OF_MEMORY)


def _taken(ref: str, occupied: Occupied) -> str:
    return f"{ref}@{occupied.task}@{occupied.num_restarts}"
