"""Maps in parallel and yields the results in the order of the inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_NUM_THREADS = 8


def in_order(
    pool: ThreadPoolExecutor, function: Callable[[_In], _Out], items: Iterable[_In]
) -> Iterator[_Out]:
    """Map in parallel in the order of the items; run ahead enough to keep all threads busy."""
    # Without a limit, all results would wait in memory for the slowest one.
    ahead = 2 * pool._max_workers
    waiting: deque[Future[_Out]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    # The reader stopped early or an error was raised: work that has not begun is dropped.
    finally:
        for future in waiting:
            future.cancel()


def of_files(function: Callable[[_In], _Out], files: Iterable[_In]) -> Iterator[_Out]:
    """Map over files, several at a time: a server takes a while for each answer."""
    with ThreadPoolExecutor(_NUM_THREADS, "files") as pool:
        yield from in_order(pool, function, files)
