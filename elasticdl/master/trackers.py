"""Ends the trackers that draw the curves of a job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elasticdl.master.actions import Note
from elasticdl.observe import kinds
from elasticdl.observe.tracker import Trackers

_END_SECONDS = 60.0  # of a job, for the last numbers and the model
_LEAVE_SECONDS = 10.0  # of a master that another one follows
_SILENT_SECONDS = 3.0  # a wait that is longer is told


class MasterTrackers(Trackers):
    """The trackers of a job, which its master ends without a wait of its loop."""

    async def close(self, has_job_ended: bool, tell: Callable[[Note], None]) -> None:
        """Wait for some seconds until the rest is drawn, and name the tracker that is awaited."""
        seconds = _END_SECONDS if has_job_ended else _LEAVE_SECONDS
        closing = {
            asyncio.ensure_future(asyncio.to_thread(each.close, seconds)): each.flag
            for each in self.all
        }
        if not closing:
            return
        _, waiting = await asyncio.wait(closing, timeout=_SILENT_SECONDS)
        if waiting:
            flags = tuple(sorted(closing[each] for each in waiting))
            text = f"waiting up to {seconds:.0f} s for {', '.join(flags)} to take what came last"
            tell(Note(kinds.TrackersAwaited(flags), text))
            await asyncio.wait(waiting)
