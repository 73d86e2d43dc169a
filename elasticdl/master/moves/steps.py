"""The steps of one ps replica in a move, and its answers.

`crates/edl-ps/src/moving/steps.rs` is the other end, with the same names. A step travels as JSON:
there are about ten in a move, and the rows do not come this way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ReplicaMarks:
    """What a replica has applied; `MovedMarks` of the store says more.

    watermarks: Task, lease, next minibatch and records, by task.
    times: Versions, and the times at which they were there in seconds since 1970; rising.
    """

    version: int = 0
    first_task: int = 0
    watermarks: Sequence[Sequence[int]] = ()
    rests: Sequence[int] = ()
    times: Sequence[Sequence[int]] = ()
    periods: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class RedoLogPlace:
    """The place of a replica's redo log, and the bytes of it that are kept."""

    folder: str
    limit: int


@dataclass(frozen=True, slots=True)
class Describe:
    """Say what is held, and whether it can move."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin to fill a store; `memory_limit` has the bytes of rows that it may hold."""

    number: int
    replica: int
    num_replicas: int
    model: str
    is_restored: bool
    num_rows: Sequence[int]
    memory_limit: int | None


@dataclass(frozen=True, slots=True)
class Copy:
    """Give the replicas of the next layout their rows.

    Round 0 copies all rows, each later one what has changed since. The last one copies the vectors
    too.
    """

    number: int
    targets: Sequence[str]
    round: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Hold:
    """Let nothing in."""

    number: int
    hold: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Let in what others have applied already, and wait so long for it."""

    number: int
    hold: int
    limits: Sequence[tuple[int, int]]
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Cut:
    """Write a checkpoint of this instant; then let everything in."""

    number: int
    hold: int
    directory: str


@dataclass(frozen=True, slots=True)
class Release:
    """Let everything in."""

    number: int
    hold: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The store that is filled has all; from now on a redo log notes what changes it."""

    number: int
    marks: ReplicaMarks
    redo_log: RedoLogPlace | None


@dataclass(frozen=True, slots=True)
class Switch:
    """Serve the store that was filled; or nothing, and leave."""

    number: int
    leaves: bool
    addresses: Sequence[str]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Give the move up."""

    number: int


MoveStep = Describe | Begin | Copy | Hold | Settle | Cut | Release | Ready | Switch | Abandon


@dataclass(frozen=True, slots=True)
class Described:
    """What a replica holds.

    model: The model as JSON.
    num_rows: The number of rows, by table.
    row_bytes: The bytes of all rows.
    """

    model: str = ""
    is_restored: bool = False
    num_rows: Sequence[int] = ()
    row_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """The answer to a step; each step fills what it speaks of.

    num_rows: Rows that `Copy` gave. entry: The manifest entry of `Cut`.
    """

    described: Described = field(default_factory=Described)
    marks: ReplicaMarks = field(default_factory=ReplicaMarks)
    num_rows: int = 0
    entry: str = ""


def encoded(step: MoveStep) -> str:
    """Return a step as it travels."""
    return json.dumps({type(step).__name__.lower(): asdict(step)})


def decoded(told: str) -> Told:
    """Return an answer that has come.

    Raises:
        ValueError: It is no answer to a step.
    """
    found: dict[str, Any] = json.loads(told)
    try:
        if "described" in found:
            found["described"] = Described(**found["described"])
        if "marks" in found:
            found["marks"] = ReplicaMarks(**found["marks"])
        return Told(**found)
    except TypeError as error:
        raise ValueError(f"expected the answer to a step of a move, found {told!r}") from error
