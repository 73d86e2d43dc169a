"""Answers requests for outputs of a tower together, in windows; computes each id once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np

from elasticdl.backends.base import Float32, Int64

MAX_IDS = 4096
"""The most ids of one request; a window with as many is full."""

_ASKS_STILL_SECONDS = 1.0  # a worker that has not asked for so long is not waited for

Compute = Callable[[int, bool, bytes, Int64], Awaitable[tuple[Float32, int]]]
"""Computes the outputs of ids, given a tower, whether it is trained, and the dense parameters that
workers sent. Returns the outputs and the window's number.
"""

_Kind = tuple[int, bool, bytes]  # of requests: only equal ones are computed together


@dataclass(slots=True)
class ServerCounts:
    """Counts the work of a model server."""

    requests: int = 0
    ids: int = 0  # as asked for; a worker asks for each id of a minibatch once
    windows: int = 0
    closed_by_time: int = 0  # of the windows
    computed: int = 0  # ids, each once a window
    backwards: int = 0  # requests
    output_bytes: int = 0  # answered
    received_bytes: int = 0  # requests of both kinds
    sent_bytes: int = 0  # and their answers


@dataclass(slots=True, eq=False)
class _Window:
    requests: list[tuple[Int64, asyncio.Future[tuple[Float32, int]]]]
    peers: set[str]
    timer: asyncio.TimerHandle
    num_ids: int = 0
    is_due: bool = False


class RequestWindows:
    """Gathers requests in windows and answers each window as a whole.

    A window is due when all workers that ask have asked, when it is full, or by time. It is closed
    when it is due and nothing else is computed. A request that comes before that is answered with
    it.

    Workers that asked within the last second count as asking. So a single worker never waits for
    others, and a worker that is lost or slow delays a window by at most `seconds`.
    """

    def __init__(
        self,
        compute: Compute,
        seconds: float,
        counts: ServerCounts,
        free: asyncio.Lock,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without a window.

        Args:
            compute: Called within the event loop.
            seconds: Until a window is due by time.
            counts: Counts the work; shared with the caller.
            free: Held by the task that computes.
            now: The time.
        """
        self._compute = compute
        self._seconds = seconds
        self._counts = counts
        self._free = free
        self._now = now
        self._open: dict[_Kind, _Window] = {}
        self._asked_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(
        self, peer: str, tower: int, training: bool, ids: Int64, dense: bytes = b""
    ) -> tuple[Float32, int]:
        """Return the outputs of ids, and the number of the window that they were computed in.

        Args:
            peer: The worker that asks.
            tower: Which tower.
            training: Whether it is trained.
            ids: Shape (n,), each once.
            dense: The tower's dense parameters, if the worker has sent any.
        """
        loop, key = asyncio.get_running_loop(), (tower, training, dense)
        self._counts.requests += 1
        self._counts.ids += len(ids)
        self._asked_at[peer] = self._now()
        window = self._open.get(key)
        if window is None:
            timer = loop.call_later(self._seconds, self._is_due, key, True)
            window = self._open[key] = _Window([], set(), timer)
        answer: asyncio.Future[tuple[Float32, int]] = loop.create_future()
        window.requests.append((ids, answer))
        window.peers.add(peer)
        window.num_ids += len(ids)
        if window.num_ids >= MAX_IDS or window.peers >= self._asking():
            self._is_due(key, False)
        # A full window takes no more ids; the next request opens another one.
        if window.num_ids >= MAX_IDS:
            del self._open[key]
        return await answer

    def _asking(self) -> set[str]:
        since = self._now() - _ASKS_STILL_SECONDS
        self._asked_at = {peer: at for peer, at in self._asked_at.items() if at >= since}
        return set(self._asked_at)

    def _is_due(self, key: _Kind, by_time: bool) -> None:
        window = self._open[key]
        if window.is_due:
            return
        window.is_due = True
        window.timer.cancel()
        self._counts.windows += 1
        self._counts.closed_by_time += by_time
        task = asyncio.get_running_loop().create_task(self._answer(key, window))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, key: _Kind, window: _Window) -> None:
        async with self._free:
            if self._open.get(key) is window:
                del self._open[key]
            await self._computed(key, window)

    async def _computed(self, key: _Kind, window: _Window) -> None:
        asked = [ids for ids, _ in window.requests]
        unique, places = np.unique(np.concatenate(asked), return_inverse=True)
        self._counts.computed += len(unique)
        try:
            outputs, number = await self._compute(*key, unique)
        except Exception as error:
            for _, answer in window.requests:
                if not answer.done():
                    answer.set_exception(error)
            return
        at = 0
        for ids, answer in window.requests:
            part = outputs[places[at : at + len(ids)]]
            at += len(ids)
            self._counts.output_bytes += part.nbytes
            if not answer.done():  # who asked may have hung up
                answer.set_result((part, number))
