"""Facts are written in a thread, many at once; answers and actions wait until they are written.

While one write is under way the job goes on in memory, and what happens meanwhile becomes the next
write. So a thousand calls of one moment cost one commit, and a journal that is slow (etcd), or away
for a while, never stops the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from elasticdl.errors import StateError
from elasticdl.master.actions import Action
from elasticdl.master.durable import DurableJob

log = logging.getLogger(__name__)
T = TypeVar("T")

LONGEST_HOLD_SECONDS = 0.1
"""The time for which an event may hold the event loop; the log tells of longer ones."""


class GroupCommit:
    """Has events happen, and knows which of their facts are written. For the event loop only.

    An answer waits until every fact that was true when the answer was made is written, also facts
    of other events. Actions wait in the same way, and keep their order.
    """

    def __init__(
        self,
        job: DurableJob,
        carry_out: Callable[[Action], None],
        on_progress: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """Put it together.

        Args:
            job: The job.
            carry_out: Does what the core wants; called when the facts before it are written.
            on_progress: Called when something has happened and is written.
            on_failure: Told that a write has failed. Nothing happens from then on.
        """
        self._job = job
        self._journal = job.core.journal
        self._carry_out = carry_out
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._failure: Exception | None = None
        # One thread keeps the writes in their order.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")
        self._writing: asyncio.Task[None] | None = None
        self._write_began = 0.0  # monotonic
        # Facts are numbered from 1, as they are recorded. All up to this one are written.
        self._num_written = self._journal.num_recorded
        self._actions: deque[tuple[int, Action]] = deque()  # with the number of facts before each
        self._is_carrying_out = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def happen(self, event: Callable[[], T]) -> T:
        """Have an event happen. Its answer must not leave the process before `written`.

        Raises:
            StateError: A write has failed; the event has not happened.
        """
        self._raise_failure()
        began = time.perf_counter()
        try:
            return self._job.happen(event)
        finally:  # what an event recorded before it was refused is true as well
            # Each action carries the number of facts before it: it may not leave before they are
            # written, or a killed master would have acted on facts that nobody knows.
            num_facts = self._journal.num_recorded
            self._actions.extend((num_facts, action) for action in self._job.core.take_actions())
            _tell_of_hold("an event", began)
            if not self.is_behind:
                self._follow()
            elif self._writing is None:
                # It begins in the next round of the loop, with all that happens in this one.
                self._write_began = time.monotonic()
                self._writing = asyncio.get_running_loop().create_task(self._write())

    async def written(self) -> None:
        """Return when all that is true now is written.

        Raises:
            StateError: It cannot be.
        """
        self._raise_failure()
        if self.is_behind:
            written = asyncio.get_running_loop().create_future()
            self._waiting.append((self._journal.num_recorded, written))
            await written

    @property
    def is_behind(self) -> bool:
        """Whether something has happened that is not written."""
        return self._num_written < self._journal.num_recorded

    @property
    def seconds_behind(self) -> float:
        """How long the present write has lasted; 0 if there is none."""
        return 0.0 if self._writing is None else time.monotonic() - self._write_began

    def close(self) -> None:
        """Write nothing more; the journal may be closed then."""
        if self._writing is not None:
            self._writing.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.is_behind:
                self._write_began, began = time.monotonic(), time.perf_counter()
                num_facts = self._journal.num_recorded
                write = self._job.take_write()
                _tell_of_hold("the making of a snapshot", began)
                await loop.run_in_executor(self._thread, self._job.append, write)
                self._num_written = num_facts
                self._follow()
                # Answers need not wait for the snapshot: the facts themselves are written.
                if write.snapshot is not None:
                    await loop.run_in_executor(self._thread, self._job.compact, write)
        except Exception as error:
            self._fail(error)
        finally:
            self._writing = None

    def _follow(self) -> None:
        """Do what waits for facts that are written."""
        if self._is_carrying_out:
            return  # an action had another event happen; its actions are carried out below
        self._is_carrying_out = True
        try:
            while self._actions and self._actions[0][0] <= self._num_written:
                self._carry_out(self._actions.popleft()[1])
        finally:
            self._is_carrying_out = False
        while self._waiting and self._waiting[0][0] <= self._num_written:
            waiter = self._waiting.popleft()[1]
            if not waiter.done():  # a client that hung up does not wait any more
                waiter.set_result(None)
        self._on_progress()

    def _fail(self, error: Exception) -> None:
        self._failure = error
        for _, waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(StateError(str(error)))
                waiter.exception()  # whoever waited may be gone
        self._waiting.clear()
        self._on_failure(error)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise StateError(str(self._failure)) from self._failure


def _tell_of_hold(what: str, began: float) -> None:
    seconds = time.perf_counter() - began
    if seconds > LONGEST_HOLD_SECONDS:
        log.warning("%s held the master's event loop for %.2f s", what, seconds)
