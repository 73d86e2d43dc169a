"""The interface between the master and its journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Fact = list[Any]
"""A fact that became true, as a JSON list: its name, then its values."""

Snapshot = dict[str, Any]
"""All facts that are true at one moment, as a JSON object."""


class State(Protocol):
    """A journal: facts in the order in which they became true, the oldest folded into a snapshot.

    A journal promises to its caller:

    - One master writes at a time. Opening a journal that another process holds open is refused.
    - When `append` returns, its facts survive the death of this process (even kill -9). Either all
      facts of a call are in the journal, or none. A call without facts does nothing.
    - `load` returns exactly the facts that were appended since the last `compact`, in order, as
      JSON returns them (a tuple comes back as a list; a float keeps its bits).
    - `compact` is atomic: after a crash the journal is as it was before, or as it is after.
    - Neither side changes a fact or a snapshot after it was passed on.
    - A call that fails raises StateError, and the error names the journal. The caller's memory is
      then ahead of the journal, so the caller must stop. The error is a TakenOverError if another
      master writes to the journal now.
    - Calls come from any thread, one at a time. But `close` may come during another call. That call
      then ends, and raises if it is not done.
    - A call waits without limit for a journal that is away for a while. Meanwhile `trouble` names
      the reason; it is "" if there is none.
    """

    @property
    def trouble(self) -> str:
        """The reason why the present call takes so long; any thread may read it."""
        ...

    def append(self, facts: Sequence[Fact]) -> None:
        """Write facts into the journal."""
        ...

    def load(self) -> tuple[Snapshot | None, list[Fact]]:
        """Return the last snapshot, if there is one, and the facts after it."""
        ...

    def compact(self, snapshot: Snapshot) -> None:
        """Replace all facts by a snapshot which has the same effect."""
        ...

    def sync(self) -> None:
        """Make the appended facts survive a machine that loses power; may come during any call.

        The master calls this before it removes something that only the appended facts make
        superfluous.
        """
        ...

    def close(self) -> None:
        """Close the journal; another process may open it then."""
        ...


@dataclass(frozen=True, slots=True)
class JournalKind:
    """A kind of journal that is not in a file, and is named by a URL.

    form: How its URLs are written, for messages.
    matches: Whether a URL is of this kind, and well formed.
    check: Returns what a user should know of a URL that matches, and opens nothing. It raises
        `ConfigError` if the journal cannot be used.
    open: Opens the journal; it raises what `State` raises.
    """

    form: str
    matches: Callable[[str], bool]
    check: Callable[[str], list[str]]
    open: Callable[[str], State]
