"""Mapping in parallel with the results in the order of what they were made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def in_order(
    pool: ThreadPoolExecutor, function: Callable[[_In], _Out], items: Iterable[_In]
) -> Iterator[_Out]:
    """Map in parallel, keeping the order; as many are ahead as keep all threads busy."""
    ahead = 2 * pool._max_workers
    waiting: deque[Future[_Out]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
