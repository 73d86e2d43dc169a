"""Facts: what the master's state machines change by, and what is left of them after a crash.

A state machine decides on a fact and records it; recording applies it, and nothing else changes
state. So replaying the facts of a journal, in order, gives the state in which they were recorded,
and no decision is made a second time.
"""

from __future__ import annotations

from collections.abc import Callable

from elasticdl.errors import StateError
from elasticdl.state.base import Fact


class Journal:
    """Applies facts, and keeps those that have still to be written down."""

    def __init__(self) -> None:
        self._appliers: dict[str, Callable[..., None]] = {}
        self._unwritten: list[Fact] = []
        self.num_recorded = 0
        """How many facts this process has recorded."""

    def handle(self, name: str, apply: Callable[..., None]) -> None:
        """Have facts of this name applied by a function of their values."""
        assert name not in self._appliers
        self._appliers[name] = apply

    def record(self, name: str, *values: object) -> None:
        """Make something true. `values` are as JSON has them."""
        self._appliers[name](*values)
        self._unwritten.append([name, *values])
        self.num_recorded += 1

    def replay(self, fact: Fact) -> None:
        """Apply a fact that was recorded by an earlier master.

        Raises:
            StateError: The fact is unknown, or cannot have followed the facts before it.
        """
        try:
            self._appliers[fact[0]](*fact[1:])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StateError(
                f"the job's journal does not fit together at {fact!r} "
                f"({type(error).__name__}: {error}); was it written by another version?"
            ) from error

    def take(self) -> list[Fact]:
        """Return the facts recorded since the last call.

        They must be written before any of their consequences leaves the process.
        """
        facts, self._unwritten = self._unwritten, []
        return facts
