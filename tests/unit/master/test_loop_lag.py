import asyncio
import time

from elasticdl.master.loop_lag import Holds, Longest, LoopLag


def make(tell, now=None):
    now = now if now is not None else [0.0]
    return LoopLag(tell, limit_seconds=0.1, clock=lambda: now[0])


def test_holds_are_told_together_and_not_too_often():
    told, now = [], [0.0]
    lag = make(told.append, now)
    lag.note(0.3, 0.3)
    assert told == [Holds(0.3, 1)]
    for seconds in (0.2, 0.5, 0.05):
        lag.note(seconds, seconds)
    assert len(told) == 1
    now[0] = 11.0
    lag.note(0.0, 0.0)
    assert told[1:] == [Holds(0.5, 2)]


def test_a_machine_that_is_busy_with_others_is_not_blamed_on_the_master():
    told = []
    lag = make(told.append)
    lag.note(0.8, 0.01)
    assert told == []
    assert lag.take_longest() == Longest(0.8, 0.0)
    lag.note(0.04, 0.04)
    assert lag.take_longest() == Longest(0.04, 0.04)


def test_an_event_that_takes_long_is_noticed():
    told = []

    async def run():
        # By wall clock: where the tests run, the machine may be busy with others.
        lag = LoopLag(told.append, cpu_clock=time.perf_counter)
        watching = asyncio.ensure_future(lag.watch())
        await asyncio.sleep(0)
        time.sleep(0.3)  # as an event would that walks a million tasks
        await asyncio.sleep(0.1)
        watching.cancel()

    asyncio.run(run())
    assert told[0].longest_seconds > 0.2
