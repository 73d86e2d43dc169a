"""The source of a job's records, as far as the master has to do with it.

`RecordSource` serves a job whose records are all there when it begins. A package brings others, for
records that go on arriving.
"""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl.errors import ElasticdlError
from elasticdl.job import Progress, Role, Shard
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.features.training_metrics import ScoredWindows
from elasticdl.master.membership import Member
from elasticdl.observe import kinds


class RecordSource(JobFeature):
    """The source of a job with an end."""

    def __init__(self, job: JobParts) -> None:
        self._job = job

    # --- events ----------------------------------------------------------------------------------

    def heard(self, member: Member, progress: Progress) -> None:
        """A worker names the source that it cannot read now."""
        waits_for = progress.waits_for
        if bool(waits_for) != bool(member.waits_for) and not self._job.history.has_ended:
            said = f"waits: {waits_for}" if waits_for else "reads again"
            text = f"{member.name} {said}"
            self._job.note(kinds.StreamNews(), text, is_warning=bool(waits_for))
        member.waits_for = waits_for

    def arrived(self, found: Sequence[Shard], now: float) -> None:
        """The source says what can be read of each partition."""

    def came_to_end(self) -> None:
        """The source has come to its end: nothing comes after what is there."""

    def went_away(self, words: str) -> None:
        """The source does not answer; workers wait for it."""

    def failed(self, words: str, now: float) -> None:
        """The source can never be read again."""
        if not self._job.history.has_ended:
            self._job.fail_after_checkpoint(words, now)
            self._job.advance(now)

    def drain(self, now: float) -> None:
        """Finish a job without end, once what has arrived by now is trained.

        Raises:
            ElasticdlError: The job has an end.
        """
        raise ElasticdlError("the job has an end: it trains on all of its data, and finishes")

    # --- questions -------------------------------------------------------------------------------

    def trained_up_to(self) -> dict[str, int]:
        """Return the position of each partition of a stream before which nothing is left to do."""
        return {}

    def kept_from(self) -> dict[str, int]:
        """Return the position of each partition of a stream before which all is forgotten."""
        return {}

    @property
    def windows(self) -> ScoredWindows:
        """The windows of event time; none where records have no times."""
        return ScoredWindows()

    # --- displays --------------------------------------------------------------------------------

    def troubles(self) -> list[str]:
        """Say which workers can read nothing for a while, and why."""
        waiting = [m for m in self._job.members.present(Role.WORKER) if m.waits_for]
        if not waiting:
            return []
        first, more = waiting[0], len(waiting) - 1
        who = f"{first.name} and {more} more are" if more else f"{first.name} is"
        return [f"{who} waiting: {first.waits_for}"]
