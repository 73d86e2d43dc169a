import pytest

from elasticdl.packages.page.history.bound import bound_of
from elasticdl.packages.page.history.fold import History


def history(worker, ps=0.1, stages=None, core_wait=0.0):
    """A job of 100 s: shares of the worker's time, and of a ps replica's that it works."""

    def usage(role, seconds):
        return {
            "time": 1100.0, "role": role, "index": 0, "event": "usage", "began": 1000.0,
            "label": "train", "label_seconds": seconds, "cpu_seconds": 1.0,
            "resident_bytes": 1, "bytes_sent": 0, "bytes_received": 0,
            "core_wait_seconds": 100 * core_wait,
        }  # fmt: skip

    progress = {
        "time": 1100.0, "role": "worker", "index": 0, "event": "progress", "num_records": 1,
        "loss_sum": 1.0, "num_minibatches": 1, "model_version": 1, "stage_seconds": stages or {},
    }  # fmt: skip
    share = {"train": ps * 100, "idle": 100 - ps * 100}
    seconds = {label: 100 * value for label, value in worker.items()}
    return History.of([usage("worker", seconds), usage("ps", share), progress])


@pytest.mark.parametrize(
    ("worker", "more", "stage"),
    [
        ({"train": 0.6, "wait for data": 0.2, "wait for parameters": 0.2}, {}, "computing"),
        ({"train": 0.2, "wait for data": 0.6, "wait for parameters": 0.2}, {}, "reading"),
        ({"train": 0.2, "wait for parameters": 0.8}, {}, "network"),
        ({"train": 0.2, "wait for parameters": 0.8}, {"ps": 0.9}, "ps replica"),
        ({"wait for parameters": 0.8}, {"ps": 0.3, "core_wait": 2.0}, "ps replica"),
        ({"wait for parameters": 0.8}, {"ps": 0.02, "core_wait": 2.0}, "network"),
        (
            {"train": 0.2, "wait for parameters": 0.8},
            {"stages": {"staleness wait": 60.0, "pull": 5.0}},
            "staleness",
        ),
    ],
)
def test_bound_is_what_workers_wait_for(worker, more, stage):
    found = bound_of(history(worker, **more))
    assert found.stage == stage
    assert found.text.startswith(f"The job is bound by {stage}: ")
    assert found.advice.endswith(".")


def test_the_cause_of_slow_reading_is_advised_where_the_look_at_the_data_found_one():
    found = history({"train": 0.2, "wait for data": 0.8})
    found.data = ["training: 7 records", "warning: --shuffle=records is slow to read: so and so"]
    assert bound_of(found).advice == "So and so."


def test_ps_replica_that_waits_for_a_core_is_not_helped_by_more_of_them():
    found = bound_of(history({"wait for parameters": 0.9}, ps=0.3, core_wait=0.5))
    assert "works for 30% of its, and waits for a core for 50%" in found.text
    assert found.advice.startswith("Its machine has too few cores")


def test_starting_does_not_count_and_of_little_time_nothing_is_said():
    assert bound_of(history({"starting": 0.99, "train": 0.01})) is None
    assert bound_of(history({"starting": 0.9, "train": 0.1})).share == 1.0
