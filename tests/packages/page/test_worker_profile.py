"""A worker records its steps when it is asked to, and its framework's own profile beside them."""

import json

from elasticdl.job import Lease, Shard, Task, TaskKind
from elasticdl.observe.labels import LabelClock
from elasticdl.packages.page.worker_profile import Profiler
from elasticdl.runtime import process
from elasticdl.worker.activity import Activity
from elasticdl.worker.spans import Place, Spans


class Own:
    """A framework's profiler that notes what is asked of it."""

    def __init__(self, error=None):
        self.said, self.error = [], error

    def begin(self, folder):
        self.said.append(f"begins {folder.name}")
        if self.error is not None:
            raise self.error
        return lambda: self.said.append("ends")


def asked(folder, own, **request):
    """Return spans and their profiler, of which a recording is wanted."""
    (folder / process.PROFILE_FOLDER).mkdir()
    path = folder / process.PROFILE_FOLDER / process.PROFILE_REQUEST
    path.write_text(json.dumps({"id": "a1", **request}))
    spans = Spans(Activity(LabelClock()), announce=lambda position: None)
    profiler = Profiler(spans, folder, "worker-3", own.begin)
    profiler.look()
    return spans, profiler


def step(spans, minibatch):
    task = Task(7, TaskKind.TRAINING, Shard("a", 0, 10), epoch=0)
    place = Place(Lease(task, number=1), minibatch)
    with spans.span("pull", place):
        pass
    with spans.span("compute", place):
        pass


def answer(folder):
    return json.loads((folder / process.PROFILE_FOLDER / "a1.worker-3.json").read_text())


def test_recording_has_so_many_steps_and_the_minibatch_of_each_pull(tmp_path):
    own = Own()
    spans, profiler = asked(tmp_path, own, steps=2)
    for minibatch in range(5):
        step(spans, minibatch)
    profiler.look()
    spans = answer(tmp_path)["spans"]
    pulled = [span["minibatch"] for span in spans if span["stage"] == "pull"]
    computed = [span["minibatch"] for span in spans if span["stage"] == "compute"]
    assert (pulled, computed) == ([0, 1], [0, 1])
    assert {span["task"] for span in spans} == {7}
    assert own.said == []


def test_worker_records_nothing_while_only_ps_replicas_are_asked(tmp_path):
    spans, profiler = asked(tmp_path, Own(), steps=0)
    step(spans, 0)
    path = tmp_path / process.PROFILE_FOLDER / process.PROFILE_REQUEST
    path.write_text(json.dumps({"id": "a1", "steps": 1}))
    profiler.look()
    step(spans, 1)
    profiler.look()
    assert {span["minibatch"] for span in answer(tmp_path)["spans"]} == {1}


def test_own_profile_is_from_the_first_step_to_the_last_and_whole_before_the_answer(tmp_path):
    own = Own()
    spans, profiler = asked(tmp_path, own, steps=3, framework=True)
    step(spans, 0)
    assert own.said == ["begins a1.worker-3.framework"]
    step(spans, 1)
    assert len(own.said) == 1
    step(spans, 2)
    assert own.said == ["begins a1.worker-3.framework", "ends"]
    step(spans, 3)
    profiler.look()
    assert len(answer(tmp_path)["spans"]) == 6
    assert len(own.said) == 2


def test_framework_that_cannot_record_costs_its_profile_alone(tmp_path, caplog):
    spans, profiler = asked(tmp_path, Own(RuntimeError("busy")), steps=2, framework=True)
    for minibatch in range(3):
        step(spans, minibatch)
    profiler.look()
    assert len(answer(tmp_path)["spans"]) == 4
    assert "the framework's own profile failed: busy" in caplog.text
