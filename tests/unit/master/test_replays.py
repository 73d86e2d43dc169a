"""Tasks that are to be done again, as ranges; against a plain list of them."""

import json

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from elasticdl.master.missing_tasks import to_edges
from elasticdl.master.replays import Replays


class Lines(RuleBasedStateMachine):
    """A line of ranges beside one of numbers."""

    def __init__(self):
        super().__init__()
        self.replays, self.line, self.out, self.times = Replays(), [], set(), [0] * 40

    @rule(ids=st.sets(st.integers(0, 39)))
    def add(self, ids):
        ids = ids - set(self.line) - self.out
        self.replays.add(np.array(to_edges(ids), np.int64).reshape(-1, 2))
        self.line += sorted(ids)
        for task_id in ids:
            self.times[task_id] += 1

    @rule()
    def take(self):
        if self.line:
            self.replays.take()
            self.out.add(self.line.pop(0))

    @rule(data=st.data(), first=st.booleans())
    def put_back(self, data, first):
        if self.out:
            task_id = data.draw(st.sampled_from(sorted(self.out)))
            self.replays.put_back(task_id, first)
            self.out.remove(task_id)
            self.line.insert(0 if first else len(self.line), task_id)

    @rule(task_id=st.integers(0, 39))
    def end(self, task_id):
        if task_id not in self.line:
            self.replays.end(task_id)
            self.out.discard(task_id)

    @rule()
    def go_on_elsewhere(self):
        snapshot = json.loads(json.dumps(self.replays.snapshot()))
        self.replays = Replays()
        self.replays.restore(snapshot)

    @invariant()
    def both_are_the_same(self):
        assert len(self.replays) == len(self.line)
        assert bool(self.replays) is bool(self.line)
        assert self.replays.next_id == (self.line[0] if self.line else None)
        assert self.replays.is_over is not bool(self.line or self.out)
        waiting = [id for first, stop in self.replays.waiting() for id in range(first, stop)]
        assert waiting == self.line
        assert [self.replays.is_out(id) for id in range(40)] == [id in self.out for id in range(40)]
        assert [self.replays.times(id) for id in range(40)] == self.times


TestLines = Lines.TestCase
TestLines.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
