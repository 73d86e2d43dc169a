"""What of a job is a span of its trace, and that masters that follow each other agree on it."""

from elasticdl.observe.job_spans import JobSpans


def fact(time, event, text="", **fields):
    return {"time": time, "role": "master", "index": 0, "event": event, "text": text, **fields}


BEFORE = [
    fact(100.0, "opened"),
    fact(101.0, "phase", phase="training"),
    fact(102.0, "registered", process="worker 0", pid=7),
    fact(103.0, "registered", process="worker 1", pid=8),
    fact(104.0, "lost", process="worker 1", reason="killed", text="worker 1 was killed"),
]
AFTER = [
    fact(110.0, "resumed", text="another master goes on"),
    fact(120.0, "phase", phase="exporting"),
    fact(121.0, "left", process="worker 0", reason="finished"),
    fact(125.0, "ended", phase="finished", text="done"),
]


def spans_of(events, job="job-1"):
    spans = JobSpans(job)
    for event in events:
        spans.add(event)
    return spans


def test_a_job_its_phases_and_its_processes_are_spans():
    found = {span.name: span for span in spans_of(BEFORE + AFTER).take_ended()}
    times = {name: (span.began, span.ended) for name, span in found.items()}
    assert times == {
        "worker 1": (103.0, 104.0),
        "phase training": (101.0, 120.0),
        "worker 0": (102.0, 121.0),
        "phase exporting": (120.0, 125.0),
        "job": (100.0, 125.0),
    }
    job = found.pop("job")
    assert {span.parent for span in found.values()} == {job.id}
    assert found["worker 1"].error == "killed"
    assert job.error == found["worker 0"].error == ""
    assert [text for _, _, text in job.facts] == [
        "worker 1 was killed",
        "another master goes on",
        "done",
    ]


def test_a_master_that_goes_on_makes_the_spans_that_its_predecessor_would_have_made():
    undisturbed, successor = spans_of(BEFORE + AFTER), spans_of(BEFORE)
    successor.take_ended()  # those of the past were sent
    for event in AFTER:
        successor.add(event)
    made = successor.take_ended()
    assert successor.trace_id == undisturbed.trace_id
    everything = undisturbed.take_ended()
    assert [span.name for span in made] == ["phase training", "worker 0", "phase exporting", "job"]
    assert all(span in everything for span in made)
    assert spans_of(BEFORE, "job-2").trace_id != successor.trace_id


def test_of_the_past_only_what_ended_lately_is_taken():
    assert [span.name for span in spans_of(BEFORE).take_ended(since=104.5)] == []
    assert [span.name for span in spans_of(BEFORE).take_ended(since=103.5)] == ["worker 1"]


def test_a_job_that_failed_says_why():
    failed = [*BEFORE, fact(105.0, "ended", phase="failed", text="the data cannot be read")]
    assert spans_of(failed).take_ended()[-1].error == "the data cannot be read"
