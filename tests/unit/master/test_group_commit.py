"""Nothing that follows from a fact happens before the fact is in the journal."""

import asyncio
import threading

import pytest

from elasticdl.errors import ConfigError, StateError
from elasticdl.job import Shard
from elasticdl.master import durable
from elasticdl.master.actions import Note
from elasticdl.master.durable import JobData, open_job
from elasticdl.master.group_commit import GroupCommit
from elasticdl.observe.kinds import Resumed
from elasticdl.state.memory import MemoryState


class SlowState(MemoryState):
    """Writes when the test lets it."""

    def __init__(self):
        super().__init__()
        self.may_write = threading.Semaphore(1)  # the job's creation
        self.writes = []
        self.problem = None

    def append(self, facts):
        self.may_write.acquire()
        if self.problem is not None:
            raise self.problem
        self.writes.append(list(facts))
        super().append(facts)


class Kit:
    """A job whose only events are messages and notes."""

    def __init__(self, master_kit):
        self.state = SlowState()
        self.job, _ = open_job(
            self.state, master_kit.config(), lambda: JobData((Shard("a", 0, 90),)), lambda: 0.0
        )
        self.state.writes.clear()
        self.done, self.failures = [], []
        self.commit = GroupCommit(
            self.job, lambda note: self.done.append(note.text), lambda: None, self.failures.append
        )

    def say(self, text):
        """An event with one fact and one action; its answer is the text."""

        def event():
            self.job.core.history.say(text)
            self.job.core._act(Note(Resumed(), text))
            return text

        return self.commit.happen(event)

    async def answer(self, text):
        answer = self.say(text)
        await self.commit.written()
        return answer


@pytest.fixture
def play(master_kit):
    def run(scene):
        async def main():
            kit = Kit(master_kit)
            try:
                async with asyncio.timeout(30):
                    await scene(kit)
            finally:
                kit.state.may_write.release(1000)
                kit.commit.close()

        asyncio.run(main())

    return run


async def rounds(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


def test_events_of_one_moment_are_one_write(play):
    async def scene(kit):
        kit.state.may_write.release()
        answers = await asyncio.gather(*(kit.answer(str(n)) for n in range(100)))
        assert answers == [str(n) for n in range(100)]
        assert kit.state.writes == [[["message", str(n)] for n in range(100)]]

    play(scene)


def test_what_happens_during_a_write_is_the_next_one(play):
    async def scene(kit):
        first = asyncio.ensure_future(kit.answer("a"))
        await rounds()
        others = [asyncio.ensure_future(kit.answer(text)) for text in "bcd"]
        kit.state.may_write.release()
        await first
        await rounds()
        assert not any(other.done() for other in others)
        kit.state.may_write.release()
        await asyncio.gather(*others)
        assert [len(write) for write in kit.state.writes] == [1, 3]

    play(scene)


def test_answer_without_a_fact_of_its_own_waits_for_those_it_may_be_about(play):
    async def scene(kit):
        kit.say("a")
        question = asyncio.ensure_future(kit.commit.written())
        await rounds()
        assert not question.done()
        kit.state.may_write.release()
        await question
        assert kit.state.writes == [[["message", "a"]]]
        await kit.commit.written()  # nothing to wait for

    play(scene)


def test_actions_follow_their_facts_in_order(play):
    async def scene(kit):
        kit.say("a")
        await rounds()
        kit.say("b")
        kit.commit.happen(lambda: kit.job.core._act(Note(Resumed(), "no fact")))
        await rounds()
        assert kit.done == []
        kit.state.may_write.release(2)
        await kit.commit.written()
        assert kit.done == ["a", "b", "no fact"]

    play(scene)


def test_refused_event_keeps_what_it_has_recorded(play):
    def refused(kit):
        kit.job.core.history.say("tried")
        raise ConfigError("no")

    async def scene(kit):
        with pytest.raises(ConfigError):
            kit.commit.happen(lambda: refused(kit))
        assert kit.commit.is_behind
        kit.state.may_write.release()
        await kit.commit.written()
        assert kit.state.writes == [[["message", "tried"]]]

    play(scene)


def test_failed_write_answers_nobody_and_ends_it_all(play):
    async def scene(kit):
        kit.state.problem = StateError("disk full")
        waiting = [asyncio.ensure_future(kit.answer(text)) for text in "ab"]
        await rounds()
        kit.state.may_write.release()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(result) for result in results] == ["disk full", "disk full"]
        assert kit.failures == [kit.state.problem]
        assert kit.done == []
        with pytest.raises(StateError, match="disk full"):
            kit.say("c")
        assert kit.job.core.message == "b"  # it has not happened

    play(scene)


def test_client_that_hangs_up_takes_nobody_along(play):
    async def scene(kit):
        gone, stays = (asyncio.ensure_future(kit.answer(text)) for text in "ab")
        await rounds()
        gone.cancel()
        kit.state.may_write.release()
        assert await stays == "b"

    play(scene)


def test_snapshot_is_of_the_facts_before_it_and_answers_do_not_wait_for_it(play, monkeypatch):
    monkeypatch.setattr(durable, "_FACTS_PER_SNAPSHOT", 3)

    async def scene(kit):
        compacting, may_compact = asyncio.Event(), threading.Event()
        loop, compact = asyncio.get_running_loop(), kit.state.compact

        def slow(snapshot):
            loop.call_soon_threadsafe(compacting.set)
            may_compact.wait()
            compact(snapshot)

        monkeypatch.setattr(kit.state, "compact", slow)
        kit.state.may_write.release(1000)
        await asyncio.gather(kit.answer("a"), kit.answer("b"))
        await compacting.wait()
        later = asyncio.ensure_future(kit.answer("c"))
        await rounds()
        assert not later.done()
        may_compact.set()
        await later
        snapshot, facts = kit.state.load()
        assert (snapshot["core"]["history"]["message"], facts) == ("b", [["message", "c"]])

    play(scene)
