"""How long the job waits for what is outside of it: a disk that is full, a store that is away."""

from __future__ import annotations

from typing import Any

from elasticdl.master.journal import Journal

PATIENCE_SECONDS = 600.0
"""The job gives up what has failed for so long. Until then somebody may make room."""

_FEWEST_TRIES = 4  # each may take minutes itself
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


class Patience:
    """The tries of one thing that must not be lost, with pauses that grow."""

    def __init__(self, journal: Journal, name: str) -> None:
        """Begin without a failure; `name` tells its facts from those of others."""
        self._journal = journal
        self._name = name
        self._since: float | None = None  # the first failure in a row
        self._tries = 0
        self._not_before = 0.0
        journal.handle(f"{name} waits", self._apply_waits)
        journal.handle(f"{name} goes on", self._apply_goes_on)

    # --- events ----------------------------------------------------------------------------------

    def failed(self, now: float) -> float | None:
        """A try has failed; return the seconds until the next one, None if there is to be none."""
        since = now if self._since is None else self._since
        tries = self._tries + 1
        if tries >= _FEWEST_TRIES and now - since >= PATIENCE_SECONDS:
            return None
        if now < self._not_before:
            return self._not_before - now  # several tries failed together and count once
        pause = min(_FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 30), _LONGEST_PAUSE_SECONDS)
        self._journal.record(f"{self._name} waits", since, tries, now + pause)
        return pause

    def succeeded(self) -> None:
        """A try has succeeded, or another thing is tried now."""
        if self._since is not None:
            self._journal.record(f"{self._name} goes on")

    # --- questions -------------------------------------------------------------------------------

    def may_try(self, now: float) -> bool:
        """Whether it is time for the next try."""
        return now >= self._not_before

    @property
    def is_waiting(self) -> bool:
        """Whether the last try has failed, and another one follows."""
        return self._since is not None

    # --- facts -----------------------------------------------------------------------------------

    def _apply_waits(self, since: float, tries: int, not_before: float) -> None:
        self._since, self._tries, self._not_before = since, tries, not_before

    def _apply_goes_on(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew; a part of a fact."""
        self._since, self._tries, self._not_before = None, 0, 0.0

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> list[object]:
        """Return the state as JSON has it."""
        return [self._since, self._tries, self._not_before]

    def restore(self, snapshot: list[Any] | None) -> None:
        """Take over the state of a snapshot; None: an earlier version wrote it, without any."""
        if snapshot is not None:
            self._since, self._tries, self._not_before = snapshot


def told(message: str, pause_seconds: float, what: str) -> str:
    """Say that something has failed and is tried again."""
    return (
        f"{message}; {what} is tried again in {pause_seconds:.0f} s, for "
        f"{PATIENCE_SECONDS / 60:.0f} minutes, and nothing that was trained is lost meanwhile"
    )
