"""The seam between the master and the place where it keeps what it must not forget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Fact = list[Any]
"""Something that became true, as a JSON list: its name, then its values."""

Snapshot = dict[str, Any]
"""All that was true at one moment, as a JSON object."""


class State(Protocol):
    """A journal: facts in the order in which they became true, the oldest folded into a snapshot.

    What a caller may assume:

    - One master writes at a time. Opening a journal that another process holds open is refused.
    - When `append` returns, its facts survive the death of this process (kill -9 included), and
      they are there all or none. It may be called with no facts, and then does nothing.
    - `load` gives back exactly what was appended since the last `compact`, in order, as JSON
      would (a tuple comes back as a list; a float is bit for bit what it was).
    - `compact` is atomic: a crash leaves the journal as it was before or as it is after.
    - Facts and snapshots that were given away are not changed afterwards, by either side.
    - A call that fails raises StateError, naming the journal. What the caller holds in memory is
      then ahead of the journal, so it must stop. It is a TakenOverError if another master writes
      to the journal now.
    - Calls come from any thread, one at a time; but `close` may come during another call, which
      then ends, and raises if it is not done.
    - A call waits for a journal that is away for a while, as long as it takes. `trouble` says
      meanwhile what the matter is; "" if nothing is.
    """

    @property
    def trouble(self) -> str:
        """Why the call that is under way takes so long; for any thread."""
        ...

    def append(self, facts: Sequence[Fact]) -> None:
        """Write facts down."""
        ...

    def load(self) -> tuple[Snapshot | None, list[Fact]]:
        """Return the last snapshot, if there is one, and the facts since."""
        ...

    def compact(self, snapshot: Snapshot) -> None:
        """Replace all that was written by a snapshot which has the same effect."""
        ...

    def sync(self) -> None:
        """Have what was appended outlast a machine that loses power; may come during any call.

        Asked before something is removed that only what was appended makes superfluous.
        """
        ...

    def close(self) -> None:
        """Let go of the journal; another process may open it then."""
        ...
