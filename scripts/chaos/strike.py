"""Carries out faults on a job, and checks that they happened.

A pidfd holds a process from before the signal until its end, so no other process can be mistaken
for it. The process lived when it was struck, and its later state is the effect of the signal.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import psutil

from elasticdl.config import JobConfig
from elasticdl.job import Role
from elasticdl.master.phases import ENDED
from elasticdl.rpc.client import JobClient
from elasticdl.runtime import process
from elasticdl.runtime.credentials import job as credentials
from elasticdl.runtime.credentials.job_authority import JobAuthority
from elasticdl.runtime.process import CONFIG_FILE, LIFELINE_VARIABLE

from .faults import MASTER_STOP_SECONDS, Fault, Struck, Victim
from .job import NUM_WORKERS, processes
from .watch import EventTail, Moment, log_path

_FIRST_BY_HAND = 1000  # index of the first worker that no launcher has started
_SECONDS = 120.0  # for anything to happen, on a busy machine
_LOOK_SECONDS = 0.002
_OTHERS_BEGIN_SECONDS = 0.5  # to go on with what the lost one held
T = TypeVar("T")


class NotStruckError(Exception):
    """A fault could not be carried out; the message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A process of the job, and the pidfd that holds it."""

    role: str
    index: int
    pid: int
    command: tuple[str, ...]
    pidfd: int

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, reaped or not."""
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def wait(self) -> bool:
        """Wait for the end of the process; return whether it came."""
        return bool(select.select([self.pidfd], [], [], _SECONDS)[0])

    def send(self, number: signal.Signals) -> Victim:
        """Send a signal to a living process."""
        when = time.time()
        if self.has_ended:
            raise NotStruckError(f"{self.role} {self.index}, pid {self.pid}, had ended before")
        signal.pidfd_send_signal(self.pidfd, number)
        return Victim(self.role, self.index, self.pid, when)


class Striker:
    """Strikes the processes of one job, one fault at a time."""

    def __init__(self, job_dir: Path, master: JobClient, tail: EventTail, rng: random.Random):
        self._job_dir = job_dir
        self._master = master
        self._tail = tail
        self._rng = rng
        self._num_workers = NUM_WORKERS
        self._by_hand: list[subprocess.Popen[bytes]] = []
        self._num_used = 0  # of those
        self._is_urgent = False  # a phase may be over in milliseconds

    def strike(self, fault: Fault, moment: Moment) -> Struck:
        """Carry out a fault."""
        text, problem = "", ""
        victims: list[Victim] = []
        self._is_urgent = fault.phase is not None
        try:
            if moment.phase in ENDED:
                raise NotStruckError("the job had ended before")
            text, victims = self._carry_out(fault)
        except NotStruckError as error:
            problem = str(error)
        return Struck(fault.kind, moment.share, str(moment.phase), text, tuple(victims), problem)

    def close(self) -> None:
        """End the workers that the striker itself has started."""
        for worker in self._by_hand:
            worker.kill()
            worker.wait()

    def _carry_out(self, fault: Fault) -> tuple[str, list[Victim]]:
        match fault.what:
            case "add":
                return self._add(), []
            case "ps-again":
                return self._kill_with_successor()
            case "ps-all":
                return self._kill(["ps"] * max(1, len(processes(self._job_dir, "ps"))))
            case "worker-stop" | "ps-stop":
                with self._targets(fault.roles) as (target,):
                    return self._stop(target)
            case "master-stop":
                with self._targets(fault.roles) as (target,):
                    return self._stop_for_a_while(target)
            case "worker-returns":
                return self._stop_by_hand()
            case _:
                return self._kill(fault.roles)

    # --- killing ---------------------------------------------------------------------------------

    def _kill(self, roles: list[str]) -> tuple[str, list[Victim]]:
        with self._targets(roles) as targets:
            victims = [target.send(signal.SIGKILL) for target in targets]
            for target in targets:
                _must(target.wait(), f"{target.role} {target.index} did not die")
        return f"kill -9 {_names(victims)}", victims

    def _kill_with_successor(self) -> tuple[str, list[Victim]]:
        with self._targets(["ps"]) as (target,):
            victim = target.send(signal.SIGKILL)
            _must(target.wait(), f"ps {target.index} did not die")
            with _opened(self._successor_of(target)) as successor:
                again = successor.send(signal.SIGKILL)
                _must(successor.wait(), f"the successor of ps {target.index} did not die")
        return f"kill -9 {_names([victim])}, and its successor, pid {again.pid}", [victim, again]

    def _successor_of(self, target: Target) -> psutil.Process:
        """Wait for the process that replaces a ps replica."""

        def find() -> psutil.Process | None:
            for found in processes(self._job_dir, "ps"):
                if tuple(found.info["cmdline"]) == target.command and found.pid != target.pid:
                    return found
            return None

        return _wait(find, f"nothing was started in place of pid {target.pid}")

    @contextlib.contextmanager
    def _targets(self, roles: list[str]) -> Iterator[list[Target]]:
        """Choose a different living process for each role; wait until there is one."""
        with contextlib.ExitStack() as stack:
            targets: list[Target] = []
            for role in roles:

                def choose(role: str = role) -> psutil.Process | None:
                    # A worker started by hand is reserved for its own fault: the master would
                    # not miss it before it has registered.
                    taken = [each.pid for each in (*targets, *self._by_hand)]
                    there = self._registered(role) if self._is_urgent else []
                    there = there or processes(self._job_dir, role)
                    free = [found for found in there if found.pid not in taken]
                    return self._rng.choice(free) if free else None

                found = _wait(choose, f"no {role} alive to strike")
                targets.append(stack.enter_context(_opened(found)))
            yield targets

    def _registered(self, role: str) -> list[psutil.Process]:
        """Return the processes in the event log, without a search through all processes."""
        pids: dict[str, int] = {}
        if role == "master":
            with contextlib.suppress(FileNotFoundError):
                pids[role] = json.loads((self._job_dir / "master.json").read_text())["pid"]
        self._tail.read()
        for event in self._tail.events:
            name = str(event.get("process", ""))
            if event["event"] == "registered" and name.startswith(role):
                pids[name] = event["pid"]
        found = []
        for pid in pids.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if str(self._job_dir) in " ".join(process.cmdline()):
                    found.append(process)
        return found

    # --- stopping --------------------------------------------------------------------------------

    def _stop(self, target: Target, longer: float = 0.0) -> tuple[str, list[Victim]]:
        """Stop a process until the master takes it as lost, or longer; then continue it."""
        victim = target.send(signal.SIGSTOP)
        try:
            seen = psutil.Process(target.pid)
            _wait(lambda: seen.status() == psutil.STATUS_STOPPED or None, "it did not stop")
            name = f"{'ps replica' if target.role == 'ps' else target.role} {target.index}"
            was_lost = self._tail.wait_for(
                lambda event: (
                    event["event"] == "lost"
                    and event.get("process") == name
                    and event["time"] > victim.when
                ),
                _SECONDS,
            )
            time.sleep(longer)
            _must(was_lost and not target.has_ended, f"{name} was not lost while it was stopped")
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(target.pidfd, signal.SIGCONT)
        seconds = time.time() - victim.when
        return f"stop {_names([victim])}, and let it go on after {seconds:.1f} s", [victim]

    def _stop_for_a_while(self, target: Target) -> tuple[str, list[Victim]]:
        victim = target.send(signal.SIGSTOP)
        time.sleep(MASTER_STOP_SECONDS)
        _must(not target.has_ended, f"{target.role} ended while it was stopped")
        signal.pidfd_send_signal(target.pidfd, signal.SIGCONT)
        text = f"stop {_names([victim])}, for {MASTER_STOP_SECONDS} s"
        return text, [replace(victim, is_back=True)]

    def _stop_by_hand(self) -> tuple[str, list[Victim]]:
        """Stop a worker that the master cannot end. It later goes on with an old lease."""
        worker, index = self._by_hand[self._num_used], _FIRST_BY_HAND + self._num_used
        self._num_used += 1
        progress = EventTail(self._job_dir, Role.WORKER, index)
        has_begun = worker.poll() is None and progress.wait_for(
            lambda e: e.get("num_minibatches", 0) > 0, _SECONDS
        )
        _must(has_begun, f"worker {index}, started by hand, got no work")
        with _opened(psutil.Process(worker.pid)) as target:
            return self._stop(target, _OTHERS_BEGIN_SECONDS)

    def start_by_hand(self) -> None:
        """Start a worker that no launcher knows, early enough that it has work when struck."""
        index = _FIRST_BY_HAND + len(self._by_hand)
        address = json.loads((self._job_dir / "master.json").read_text())["address"]
        environment = {n: v for n, v in os.environ.items() if n != LIFELINE_VARIABLE}
        cluster = JobConfig.read(self._job_dir / CONFIG_FILE).cluster
        tls_dir = credentials.folder_of(cluster, self._job_dir)
        if tls_dir is not None:
            life_seconds = cluster.tls_certificate_seconds
            JobAuthority.of_job(tls_dir, cluster.job_name, life_seconds).issue(Role.WORKER, index)
        with log_path(self._job_dir, index).open("ab") as log:
            worker = subprocess.Popen(
                process.command(Role.WORKER, index, self._job_dir, address, tls_dir=tls_dir),
                stdout=log,
                stderr=log,
                env=environment,
            )
        self._by_hand.append(worker)

    # --- adding ----------------------------------------------------------------------------------

    def _add(self) -> str:
        before = {found.pid for found in processes(self._job_dir, "worker")}
        self._num_workers += 1
        # Workers that were started by hand count as well.
        self._master.set_num_workers(self._num_workers + len(self._by_hand))

        def find() -> psutil.Process | None:
            there = processes(self._job_dir, "worker")
            return next((found for found in there if found.pid not in before), None)

        added = _wait(find, "no worker was started")
        return f"worker added, pid {added.pid}: {self._num_workers} wanted"


@contextlib.contextmanager
def _opened(found: psutil.Process) -> Iterator[Target]:
    """Hold a process, and check again that it is the same one."""
    try:
        pidfd = os.pidfd_open(found.pid)
    except ProcessLookupError:
        raise NotStruckError(f"pid {found.pid} had ended before") from None
    try:
        try:
            command = tuple(psutil.Process(found.pid).cmdline())
        except psutil.NoSuchProcess:
            command = ()
        if "--index" not in command:
            raise NotStruckError(f"pid {found.pid} had ended before")
        index = int(command[command.index("--index") + 1])
        role = next(word for word in command if word.startswith("elasticdl."))
        yield Target(role.partition(".")[2], index, found.pid, command, pidfd)
    finally:
        os.close(pidfd)


def _wait(look: Callable[[], T | None], problem: str) -> T:
    """Wait until `look` finds something.

    Raises:
        NotStruckError: It was not found in time.
    """
    deadline = time.monotonic() + _SECONDS
    while (found := look()) is None:
        _must(time.monotonic() < deadline, problem)
        time.sleep(_LOOK_SECONDS)
    return found


def _must(is_so: bool, problem: str) -> None:
    if not is_so:
        raise NotStruckError(problem)


def _names(victims: list[Victim]) -> str:
    return " and ".join(f"{victim.role} {victim.index}, pid {victim.pid}" for victim in victims)
