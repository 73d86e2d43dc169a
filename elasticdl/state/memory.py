"""A journal that lasts as long as its process, for jobs in one process and for tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from elasticdl.errors import StateError
from elasticdl.state.base import Fact, Snapshot


class MemoryState:
    """`elasticdl.state.base.State` in a list; after `close` the facts remain, as in a file."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._facts: list[Fact] = []
        self.trouble = ""

    def append(self, facts: Sequence[Fact]) -> None:
        """Write facts into the journal."""
        self._facts.extend(facts)

    def load(self) -> tuple[Snapshot | None, list[Fact]]:
        """Return the last snapshot, if there is one, and the facts after it."""
        return _through_json(self._snapshot), _through_json(self._facts)

    def compact(self, snapshot: Snapshot) -> None:
        """Replace all facts by a snapshot which has the same effect."""
        self._snapshot = snapshot
        self._facts = []

    def sync(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _through_json(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise StateError(f"the journal in memory holds what JSON cannot: {error}") from error
