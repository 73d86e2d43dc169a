"""The faults of a job, their times, and their records."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from elasticdl.master.phases import Phase

ROLES = ("worker", "ps", "master")
SPECIAL = {
    "add": "one more worker",
    "ps-again": "a ps replica is killed, and its successor as soon as it has started",
    "ps-all": "all ps replicas are killed at once",
    "worker-stop": "a worker is stopped until it counts as lost, then goes on",
    "worker-returns": "the same with a worker that was started by hand: nobody can end it",
    "ps-stop": "a ps replica is stopped until it counts as lost, then goes on",
    "master-stop": "the master is stopped for longer than that; nobody may count as lost for it",
}
PHASES = {
    "pending": Phase.PENDING,
    "training": Phase.TRAINING,
    "evaluating": Phase.EVALUATING,
    "exporting": Phase.EXPORTING,
    "checkpointing": Phase.CHECKPOINTING,
    "auditing": Phase.AUDITING,
}
STOPPED_TIMEOUT_SECONDS = 3.0  # after which one that is not heard of counts as lost
MASTER_STOP_SECONDS = 4.5
_EARLIEST, _LATEST = 0.05, 0.85  # share of the records; what is done later may find no job
_LATEST_ADD = 0.3  # a new worker takes a while to start
_EARLIEST_STOP = 0.6  # while one is stopped, the others may come to the end of the data


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a job: `worker`, `ps+master` (both at once), `ps@exporting`, ...

    kind: The word for it on the command line.
    what: A word of `SPECIAL` or of `ROLES`, or several roles joined by "+": killed at once.
    at: Share of trained records at which it happens; None if it waits for a phase.
    phase: Phase that the job must have begun.
    """

    kind: str
    what: str
    at: float | None = None
    phase: Phase | None = None

    @property
    def roles(self) -> list[str]:
        """The roles of the processes to strike, one for each process; empty for `add`."""
        if self.what == "add":
            return []
        return [part.partition("-")[0] for part in self.what.split("+")]


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that was struck while it lived, and its state then.

    when: Seconds since 1970, just before the signal.
    is_back: It was only stopped for a while, which must do no harm.
    """

    role: str
    index: int
    pid: int
    when: float
    is_back: bool = False


@dataclass(frozen=True, slots=True)
class Struck:
    """The result of a fault. `problem` says why it did not happen; "" if it happened."""

    kind: str
    share: float
    phase: str
    text: str
    victims: tuple[Victim, ...] = ()
    problem: str = ""


def parse(kind: str, rng: random.Random) -> Fault:
    """Return the fault of a word. Its time is drawn, unless it waits for a phase.

    Raises:
        ValueError: There is no such fault. The message lists the faults.
    """
    what, _, phase = kind.partition("@")
    is_known = what in SPECIAL or all(role in ROLES for role in what.split("+"))
    if not is_known or (phase and phase not in PHASES):
        raise ValueError(
            f"expected roles to kill at once ({', '.join(ROLES)}; joined by +) or one of "
            f"{', '.join(SPECIAL)}, then perhaps @ and a phase ({', '.join(PHASES)}); "
            f"found {kind!r}"
        )
    if phase:
        return Fault(kind, what, phase=PHASES[phase])
    earliest = _EARLIEST_STOP if what.endswith(("-stop", "-returns")) else _EARLIEST
    return Fault(kind, what, at=rng.uniform(earliest, _LATEST_ADD if what == "add" else _LATEST))


def plan(kinds: Sequence[str], rng: random.Random) -> list[Fault]:
    """Draw the time of each fault. Faults that wait for a phase come in the order of phases."""
    order = list(PHASES.values())

    def moment(fault: Fault) -> tuple[float, float]:
        if fault.phase is not None:
            return (float(order.index(fault.phase)), 0.0)
        return (float(order.index(Phase.TRAINING)), fault.at or 0.0)

    return sorted((parse(kind, rng) for kind in kinds), key=moment)


def is_due(fault: Fault, share: float, phase: Phase) -> bool:
    """Whether it is time for a fault."""
    order = list(Phase)
    if fault.phase is not None:
        return order.index(phase) >= order.index(fault.phase)
    return share >= (fault.at or 0.0)


def flags_of(faults: Sequence[Fault]) -> dict[str, object]:
    """Return the flags of the job that these faults need.

    A stopped process must count as lost soon. A fault in a phase needs a job with this phase.
    """
    flags: dict[str, object] = {}
    if any(fault.what.endswith(("-stop", "-returns")) for fault in faults):
        flags["heartbeat_timeout_seconds"] = STOPPED_TIMEOUT_SECONDS
    return flags
