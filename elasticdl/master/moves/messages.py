"""The actions of the core that lead a move, and the answers to them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PsProcess:
    """A process at the place of a ps replica."""

    index: int
    session: str
    address: str


@dataclass(frozen=True, slots=True)
class PrepareMove:
    """Have ps replicas get ready for another number of them.

    Then `MovePrepared` or `MoveFailed`. A checkpoint of all at one instant is written with it.
    """

    layout: int
    version: int  # of the model, for the checkpoint
    now: tuple[PsProcess, ...]
    after: tuple[PsProcess, ...]


@dataclass(frozen=True, slots=True)
class TellMoved:
    """Have ps replicas go over to the layout that counts now; then `MoveTold`.

    whom: the replicas that got ready, and the replicas that the layout leaves out.
    addresses: the addresses of all replicas of that layout.
    """

    layout: int
    count: int
    whom: tuple[PsProcess, ...]
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AbandonMove:
    """Have ps replicas stay as they are; nobody waits for it."""

    layout: int
    whom: tuple[PsProcess, ...]


@dataclass(frozen=True, slots=True)
class LostInMove:
    """A process is lost while the model moves: nobody waits for its answers any longer."""

    session: str


@dataclass(frozen=True, slots=True)
class MovePrepared:
    """All ps replicas of `PrepareMove` are ready, hold, and have all; the checkpoint is whole."""

    done: PrepareMove


@dataclass(frozen=True, slots=True)
class MoveFailed:
    """The move came to nothing, and was given up everywhere.

    is_refused: It will never come to anything.
    """

    done: PrepareMove
    message: str
    is_refused: bool = False


@dataclass(frozen=True, slots=True)
class MoveTold:
    """The answer to `TellMoved`: it has been done, or some replicas could not be reached."""

    layout: int
    is_everybody: bool


MoveAction = PrepareMove | TellMoved | AbandonMove | LostInMove
MoveAnswer = MovePrepared | MoveFailed | MoveTold
