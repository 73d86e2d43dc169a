"""The core knows a list of features, and none of them by name (docs/designs/features.md)."""

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest

from elasticdl.job import Shard
from elasticdl.master import core as core_module
from elasticdl.master.actions import Note
from elasticdl.master.core import JobCore
from elasticdl.master.features import features_of
from elasticdl.master.features.base import JobFeature
from elasticdl.master.ledger import Settled
from elasticdl.master.phases import Phase
from elasticdl.master.status import picture
from elasticdl.master.tasks import make_tasks
from elasticdl.observe.kinds import Resumed


class CountsTasks(JobFeature):
    """Counts the tasks that are done, and keeps a job of three in training until it is let go."""

    def __init__(self, job):
        self.job, self.count, self.is_kept = job, 0, True
        job.journal.handle("counted", self._apply)

    def ended(self, task, report, settled, now):
        if settled is Settled.DONE:
            self.job.journal.record("counted", 1)

    def holds(self, phase):
        return phase is Phase.TRAINING and self.is_kept

    def let_go(self, now):
        self.is_kept = False
        self.job.note(Resumed(), f"{self.count} tasks are counted")
        self.job.advance(now)

    def show(self, status):
        return replace(status, message=f"{status.message}{self.count} counted")

    def snapshot(self):
        return {"count": self.count}

    def restore(self, snapshot):
        self.count = snapshot["count"]

    def _apply(self, number):
        self.count += number


@pytest.fixture
def make_core(master_kit):
    def make(make_features):
        config = master_kit.config(validation_data="")
        tasks = make_tasks(config, [Shard("a", 0, 90)], [], [])
        return JobCore(config, tasks, make_features)

    return make


def started(master_kit, core):
    play = master_kit.Play(core)
    core.begin(0.0)
    play.register(0)
    return play


def test_no_part_of_the_core_imports_a_feature():
    folder = Path(core_module.__file__).parent
    around = ["servicer", "in_process", "master", "durable", "interpreter", "status"]
    paths = {*folder.glob("*.py"), *(folder / "parameters").glob("*.py")}
    for path in paths - {folder / f"{name}.py" for name in around}:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and "master.features." in str(node.module):
                assert node.module == "elasticdl.master.features.base", path.name


def test_a_job_without_any_feature_trains_and_is_proved(master_kit, make_core):
    play = started(master_kit, make_core(lambda job: []))
    play.run()
    play.audit()
    status = picture(play.core, play.now)
    assert status.status == "finished"
    assert status.ledger[0].trained_once == 90


def test_a_feature_that_the_core_does_not_know_takes_part_in_all(master_kit, make_core):
    make = lambda job: [*features_of(job), CountsTasks(job)]  # noqa: E731
    play = started(master_kit, make_core(make))
    play.run()
    assert play.core.phase is Phase.TRAINING
    assert picture(play.core, play.now).message == "3 counted"
    facts = json.loads(json.dumps(play.core.journal.take()))
    replayed, restored = make_core(make), make_core(make)
    for fact in facts:
        replayed.journal.replay(fact)
    restored.restore(json.loads(json.dumps(play.core.snapshot())))
    counts = [core.features.of(CountsTasks).count for core in (replayed, restored)]
    assert counts == [3, 3]
    play.core.features.of(CountsTasks).let_go(play.now)
    assert play.core.phase is Phase.AUDITING
    assert "3 tasks are counted" in [note.text for note in play.do(Note)]
