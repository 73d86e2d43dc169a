"""Carries out the actions of moves: calls to replicas, a checkpoint, and the end of old logs."""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.errors import ElasticdlError
from elasticdl.locations import Location
from elasticdl.master.moves.leading import MoveRefusedError, RedoLogOf
from elasticdl.master.moves.messages import (
    AbandonMove,
    MoveAnswer,
    MoveFailed,
    MovePrepared,
    MoveTold,
    PrepareMove,
    TellMoved,
)
from elasticdl.master.moves.mover import Mover


class MoveEffects:
    """Does one action after the other; each call blocks."""

    def __init__(
        self,
        mover: Mover,
        write_checkpoint: Callable[[int, Callable[[Location], list[str]]], object],
        redo_log_of: RedoLogOf,
        sync: Callable[[], None],
        remove_redo_logs: Callable[[int], None],
    ) -> None:
        """Put it together.

        Args:
            mover: Leads the replicas.
            write_checkpoint: Writes a checkpoint of a version, given a function that has the
                replicas write their parts into a folder and returns their manifest entries.
            redo_log_of: Returns the place of a replica's redo log in a layout; None: it has none.
            sync: Has the journal outlast a machine that loses power.
            remove_redo_logs: Removes the redo logs of all layouts but one.
        """
        self._mover = mover
        self._write_checkpoint = write_checkpoint
        self._redo_log_of = redo_log_of
        self._sync = sync
        self._remove_redo_logs = remove_redo_logs

    def do(self, action: PrepareMove | TellMoved | AbandonMove) -> MoveAnswer | None:
        """Do what the core wants; return the answer, if there is one."""
        match action:
            case PrepareMove():
                return self._prepare(action)
            case TellMoved():
                # A replica that has gone over cannot go back, so the fact `moved` must outlast a
                # machine that loses power.
                self._sync()
                is_everybody = self._mover.tell(action)
                if is_everybody:
                    self._remove_redo_logs(action.layout)
                return MoveTold(action.layout, is_everybody)
            case AbandonMove():
                self._mover.abandon(action)
                return None

    def _prepare(self, action: PrepareMove) -> MoveAnswer:
        def write(parts: Callable[[Location], list[str]]) -> None:
            self._write_checkpoint(action.version, parts)

        try:
            self._mover.prepare(action, write, self._redo_log_of)
        except ElasticdlError as error:
            return MoveFailed(action, str(error), isinstance(error, MoveRefusedError))
        return MovePrepared(action)

    def lost(self, session: str) -> None:
        """Wait for a process that is lost no longer; may be told from any thread."""
        self._mover.losses.add(session)
