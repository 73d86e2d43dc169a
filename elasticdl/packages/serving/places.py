"""Decides which connection or transfer of a server must end when there are too many.

Connections take places, and requests and answers on their way hold bytes. Nothing is read or waited
for here: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace

FREE_BYTES = 1 << 16
"""This much of each transfer is not counted: a small request is answered whatever others hold."""
_PATIENCE_SECONDS = 1.0  # before a transfer may have to go for another


@dataclass(slots=True, eq=False)
class Transfer:
    """A request or an answer on its way.

    connection: The connection to which it belongs.
    since: The time when it began.
    cut: Ends it; None while the model computes with it.
    num_bytes: The bytes that it holds.
    """

    connection: Hashable
    since: float
    cut: Callable[[], None] | None = None
    num_bytes: int = 0

    @property
    def counted(self) -> int:
        """The part of its bytes that counts against the common limit."""
        return max(0, self.num_bytes - FREE_BYTES)

    def may_go(self, now: float) -> bool:
        """Return whether it may be ended for another one."""
        return self.cut is not None and now - self.since >= _PATIENCE_SECONDS


class Places:
    """The connections of a server and the bytes that they hold."""

    def __init__(self, most_bytes: int) -> None:
        """Begin without connections.

        Args:
            most_bytes: The limit for all transfers together, beside `FREE_BYTES` each.
        """
        self._most_bytes = most_bytes
        self._transfers: dict[Transfer, None] = {}  # the oldest first
        self._quiet_since: dict[Hashable, float] = {}
        self.num_bytes = 0

    # --- bytes -----------------------------------------------------------------------------------

    def begin(self, transfer: Transfer) -> None:
        """Note that a request begins to come, or an answer to go.

        The longest transfers that are older than a second are ended to make room. An answer is in
        memory already, so it goes even if there is no room.
        """
        if transfer.counted:
            self._make_room(transfer, transfer.counted, transfer.since)
        self._transfers[transfer] = None
        self.num_bytes += transfer.counted

    def grow(self, transfer: Transfer, num_bytes: int, now: float) -> bool:
        """Let a transfer hold more bytes; return whether there is room.

        The longest transfers that are older than a second are ended to make room. A transfer that
        was ended gets no more room.
        """
        # It may still read what came before its task hears of the end. No `end` would take it off.
        if transfer not in self._transfers:
            return False
        grown = replace(transfer, num_bytes=transfer.num_bytes + num_bytes)
        more = grown.counted - transfer.counted
        self._make_room(transfer, more, now)
        if more and self.num_bytes + more > self._most_bytes:
            return False
        transfer.num_bytes = grown.num_bytes
        self.num_bytes += more
        return True

    def end(self, transfer: Transfer) -> None:
        """Note that a request or answer is complete; one that is not is cut off."""
        if transfer not in self._transfers:
            return
        del self._transfers[transfer]
        self.num_bytes -= transfer.counted
        if transfer.cut is not None:
            transfer.cut()

    def _make_room(self, transfer: Transfer, more: int, now: float) -> None:
        # The oldest come first: a slow client has had its time.
        for other in list(self._transfers):
            if self.num_bytes + more <= self._most_bytes:
                break
            if other is not transfer and other.counted and other.may_go(now):
                self.end(other)

    # --- places ----------------------------------------------------------------------------------

    def look(self, connections: Iterable[Hashable], busy: Iterable[Hashable], now: float) -> None:
        """Note which connections there are, and which of them wait for an answer."""
        before, busy = self._quiet_since, set(busy)
        self._quiet_since = {c: before.get(c, now) for c in connections if c not in busy}

    def asks(self, connection: Hashable) -> None:
        """Note that the headers of a request have come from a connection."""
        self._quiet_since.pop(connection, None)

    def silent(self, since: float) -> list[Hashable]:
        """Return the connections that have sent no request since a time."""
        return [c for c, began in self._quiet_since.items() if began <= since]

    def first_to_go(self, now: float) -> Hashable | None:
        """Return the connection that must give its place to another: a quiet or slow one.

        None: no one.

        The connection is forgotten here; the caller must close it.
        """
        # A quiet connection loses nothing that a new request would not bring again.
        if self._quiet_since:
            connection = min(self._quiet_since, key=self._quiet_since.__getitem__)
            del self._quiet_since[connection]
            return connection
        slow = next((each for each in self._transfers if each.may_go(now)), None)
        if slow is None:
            return None
        self.end(slow)
        return slow.connection
