"""When a window of a model server closes, and what it computes."""

import asyncio

import numpy as np
import pytest

from elasticdl.packages.model_servers.windows import MAX_IDS, RequestWindows, ServerCounts

LONG, SHORT = 3600.0, 0.001


def ids(*numbers):
    return np.array(numbers, np.int64)


class Server:
    """Windows whose tower gives each id times ten."""

    def __init__(self, seconds):
        self.computed, self.counts, self.time = [], ServerCounts(), 0.0
        self.free = asyncio.Lock()
        self.windows = RequestWindows(
            self.compute, seconds, self.counts, self.free, lambda: self.time
        )

    async def compute(self, tower, training, dense, unique):
        self.computed.append(unique.tolist())
        return (unique[:, None] * 10).astype(np.float32), len(self.computed)

    def ask(self, peer, *numbers, tower=0, dense=b""):
        return self.windows.ask(peer, tower, True, ids(*numbers), dense)


def run(test):
    asyncio.run(asyncio.wait_for(test, 20))


def test_an_id_that_two_workers_ask_for_is_computed_once_and_both_are_answered():
    async def test():
        server = Server(LONG)
        await server.ask("a", 1)  # alone, it does not wait
        first = asyncio.create_task(server.ask("b", 5, 7))
        await asyncio.sleep(0)
        assert not first.done()
        (of_a, window), (of_b, same) = await asyncio.gather(server.ask("a", 7, 9), first)
        assert server.computed == [[1], [5, 7, 9]]
        assert of_a.ravel().tolist() == [70, 90]
        assert of_b.ravel().tolist() == [50, 70]
        assert window == same == 2
        assert (server.counts.ids, server.counts.computed, server.counts.windows) == (5, 4, 2)
        assert server.counts.closed_by_time == 0

    run(test())


def test_a_worker_that_does_not_ask_is_waited_for_until_the_window_times_out():
    async def test():
        server = Server(SHORT)
        await server.ask("lost", 1)
        await server.ask("a", 2)
        assert server.computed == [[1], [2]]
        assert server.counts.closed_by_time == 1

    run(test())


def test_a_worker_that_has_long_not_asked_is_not_waited_for():
    async def test():
        server = Server(LONG)
        await server.ask("lost", 1)
        server.time = 2.0
        await server.ask("a", 2)
        assert server.counts.closed_by_time == 0

    run(test())


def test_a_window_that_is_full_is_closed():
    async def test():
        server = Server(LONG)
        await server.ask("other", 1)
        await server.ask("a", *range(MAX_IDS))
        assert len(server.computed[1]) == MAX_IDS

    run(test())


def test_who_asks_while_something_else_is_computed_is_answered_with_the_others():
    async def test():
        server = Server(SHORT)
        async with server.free:
            first = asyncio.create_task(server.ask("a", 1, 2))
            await asyncio.sleep(0)
            second = asyncio.create_task(server.ask("b", 2, 3))
            await asyncio.sleep(0)
            assert server.computed == []
        await asyncio.gather(first, second)
        assert server.computed == [[1, 2, 3]]
        assert server.counts.windows == 1

    run(test())


@pytest.mark.parametrize("kind", [{"tower": 1}, {"dense": b"newer"}])
def test_towers_and_what_workers_bring_have_windows_of_their_own(kind):
    async def test():
        server = Server(LONG)
        await server.ask("a", 1)
        one = asyncio.create_task(server.ask("b", 2))
        await asyncio.sleep(0)
        other = asyncio.create_task(server.ask("a", 3, **kind))
        await asyncio.sleep(0)
        assert server.computed == [[1]]
        await asyncio.gather(server.ask("a", 4), server.ask("b", 5, **kind), one, other)
        assert sorted(server.computed) == [[1], [2, 4], [3, 5]]

    run(test())


def test_what_fails_in_a_window_is_told_to_all_who_asked():
    async def test():
        server = Server(LONG)
        await server.ask("a", 1)

        async def fails(tower, training, dense, unique):
            raise ValueError("no")

        server.windows._compute = fails
        first = asyncio.create_task(server.ask("b", 2))
        await asyncio.sleep(0)
        answers = await asyncio.gather(first, server.ask("a", 3), return_exceptions=True)
        assert [str(answer) for answer in answers] == ["no", "no"]

    run(test())
