"""What strangers take of a server: places, and bytes that come or go. Who goes when it is too much.

Nothing is read and nothing waited for here: time is a number that is given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace

FREE_BYTES = 1 << 16
"""So much of each transfer is not counted: a small request is answered whoever holds the rest."""
_PATIENCE_SECONDS = 1.0  # before a transfer may have to go for another


@dataclass(slots=True, eq=False)
class Transfer:
    """A request or an answer on its way.

    connection: Whose it is. since: When it began. cut: Ends it; None while it is computed with.
    num_bytes: What it holds.
    """

    connection: Hashable
    since: float
    cut: Callable[[], None] | None = None
    num_bytes: int = 0

    @property
    def counted(self) -> int:
        """What it takes of the bytes that all have together."""
        return max(0, self.num_bytes - FREE_BYTES)

    def may_go(self, now: float) -> bool:
        """Whether it may have to go for another."""
        return self.cut is not None and now - self.since >= _PATIENCE_SECONDS


class Places:
    """The connections of a server and the bytes that they hold."""

    def __init__(self, most_bytes: int) -> None:
        """Begin without connections.

        Args:
            most_bytes: What all transfers together may hold, beside `FREE_BYTES` each.
        """
        self._most_bytes = most_bytes
        self._transfers: dict[Transfer, None] = {}  # the oldest first
        self._quiet_since: dict[Hashable, float] = {}
        self.num_bytes = 0

    # --- bytes -----------------------------------------------------------------------------------

    def begin(self, transfer: Transfer) -> None:
        """Note that a request begins to come, or an answer to go."""
        self._transfers[transfer] = None
        self.num_bytes += transfer.counted

    def grow(self, transfer: Transfer, num_bytes: int, now: float) -> bool:
        """Have a transfer hold more bytes; return whether there is room.

        For it the longest ones go that are older than a second.
        """
        grown = replace(transfer, num_bytes=transfer.num_bytes + num_bytes)
        more = grown.counted - transfer.counted
        for other in list(self._transfers):
            if self.num_bytes + more <= self._most_bytes:
                break
            if other is not transfer and other.counted and other.may_go(now):
                self.end(other)
        if more and self.num_bytes + more > self._most_bytes:
            return False
        transfer.num_bytes = grown.num_bytes
        self.num_bytes += more
        return True

    def end(self, transfer: Transfer) -> None:
        """Note that a request or answer is through; one that is not is cut."""
        if transfer not in self._transfers:
            return
        del self._transfers[transfer]
        self.num_bytes -= transfer.counted
        if transfer.cut is not None:
            transfer.cut()

    # --- places ----------------------------------------------------------------------------------

    def look(self, connections: Iterable[Hashable], busy: Iterable[Hashable], now: float) -> None:
        """Note which connections there are, and which of them a request is answered for."""
        before, busy = self._quiet_since, set(busy)
        self._quiet_since = {c: before.get(c, now) for c in connections if c not in busy}

    def asks(self, connection: Hashable) -> None:
        """A request has come from a connection: its headers are there."""
        self._quiet_since.pop(connection, None)

    def silent(self, since: float) -> list[Hashable]:
        """Return the connections that have asked nothing since a time."""
        return [c for c, began in self._quiet_since.items() if began <= since]

    def first_to_go(self, now: float) -> Hashable | None:
        """Return whose place another may have: who asks nothing, or is slow. None: nobody's.

        The connection is forgotten: it has to be closed.
        """
        if self._quiet_since:
            connection = min(self._quiet_since, key=self._quiet_since.__getitem__)
            del self._quiet_since[connection]
            return connection
        slow = next((each for each in self._transfers if each.may_go(now)), None)
        if slow is None:
            return None
        self.end(slow)
        return slow.connection
