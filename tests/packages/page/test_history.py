"""What events add up to: seconds by label, throughput, goodput, dips. All from made-up events."""

import json
import re

import pytest

from elasticdl.job import Label, Role
from elasticdl.packages.page.document import asset
from elasticdl.packages.page.history import dips
from elasticdl.packages.page.history.bins import NUM_CELLS
from elasticdl.packages.page.history.board import board, cells
from elasticdl.packages.page.history.dips import dips_of
from elasticdl.packages.page.history.fold import LOSS, MOST_POINTS, RECORDS, History
from elasticdl.packages.page.history.goodput import TRAINED_AGAIN
from elasticdl.packages.page.history.lanes import LABELS, UNHEARD

BEGAN = 1000.0


def usage(time, seconds, role="worker", index=0, began=BEGAN, **more):
    return {
        "time": time,
        "role": role,
        "index": index,
        "event": "usage",
        "began": began,
        "label": "train",
        "label_seconds": seconds,
        "cpu_seconds": 0.5 * (time - began),
        "resident_bytes": 1_000_000,
        "bytes_sent": 0,
        "bytes_received": 0,
        **more,
    }


def progress(time, records, loss=0.5, index=0):
    return {
        "time": time,
        "role": "worker",
        "index": index,
        "event": "progress",
        "num_records": records,
        "loss_sum": records * loss,
        "num_minibatches": records,
        "model_version": records,
        "stage_seconds": {"compute": time - BEGAN},
    }


def fact(time, event, text="", **fields):
    return {"time": time, "role": "master", "index": 0, "event": event, "text": text, **fields}


def beats(seconds, label_of=lambda second: "train", index=0, records=100, began=BEGAN):
    """Return what a worker says that is at one label each second."""
    yield fact(began, "opened", schema=1, pid=1)
    sums, done = {}, 0
    for second in range(1, seconds + 1):
        label = label_of(second)
        sums = {**sums, label: sums.get(label, 0.0) + 1.0}
        done += records if label == "train" else 0
        yield progress(began + second, done, index=index)
        yield usage(began + second, sums, index=index, began=began)


def lane(history, name):
    (found,) = (lane for lane in history.lanes if lane.name == name)
    return found


def test_labels_of_a_lane_add_up_to_the_life_of_its_processes():
    history = History.of(beats(30, lambda s: "train" if s % 3 else "wait for data"))
    worker = lane(history, "worker-0")
    assert worker.seconds == {"train": 20.0, "wait for data": 10.0}
    assert worker.row.amounts.sum() == pytest.approx(30.0)
    good = history.goodput()
    assert good.good + sum(good.losses.values()) == good.seconds == pytest.approx(30.0)
    assert good.share == pytest.approx(20 / 30)


def test_each_second_is_in_the_cell_of_its_time():
    history = History.of(beats(10, lambda s: "wait for data" if s == 4 else "train"))
    row = lane(history, "worker-0").row.amounts
    waits = row[:10, LABELS.index("wait for data")]
    assert waits.tolist() == pytest.approx([0, 0, 0, 1, 0, 0, 0, 0, 0, 0])


def test_the_page_has_the_lanes_of_all_roles_in_the_order_of_the_history():
    history = History.of(usage(BEGAN + 1, {"train": 1.0}, role=role) for role in Role)
    (order,) = re.findall(r"const order = \{(.*?)\}", asset("store.js"))
    places = dict(re.findall(r"(\w+): (\d)", order))
    roles = [lane.role for lane in history.lanes]
    assert sorted(places, key=places.get) == roles


def test_long_job_keeps_all_seconds_and_records_in_as_many_cells():
    seconds = 5 * NUM_CELLS
    history = History.of(beats(seconds))
    assert history.bins.step == 8.0
    assert history.bins.count == seconds / 8
    assert lane(history, "worker-0").row.amounts.sum() == pytest.approx(seconds)
    assert history.progress.amounts[:, RECORDS].sum() == pytest.approx(100 * (seconds - 1) + 100)
    assert history.progress.amounts[:, LOSS].sum() == pytest.approx(50 * seconds)


def test_the_order_of_processes_does_not_matter():
    first, second = list(beats(20, index=0)), list(beats(20, lambda s: "idle", index=1))
    events, by_process = [*first, *second], [*second, *first]
    whole, other = History.of(events), History.of(by_process)
    assert whole.goodput() == other.goodput()
    for name in ("worker-0", "worker-1"):
        assert (lane(whole, name).row.amounts == lane(other, name).row.amounts).all()


def test_lost_process_is_not_heard_of_until_it_was_found_to_be_gone():
    lost = fact(BEGAN + 14.0, "lost", "worker 0 was killed", process="worker 0", reason="killed")
    history = History.of([*beats(10), lost])
    assert lane(history, "worker-0").state == "lost"
    good = history.goodput()
    assert good.losses == {UNHEARD: pytest.approx(4.0)}
    assert good.seconds == pytest.approx(14.0)
    assert history.num_lost == {"worker": 1}


def lost_workers(number):
    """Return what workers say that each train for ten seconds, and then are lost."""
    for index in range(number):
        began = BEGAN + 20.0 * index
        yield from beats(10, index=index, began=began)
        yield fact(began + 14.0, "lost", process=f"worker {index}", reason="killed")


def test_the_workers_that_a_long_job_has_lost_share_a_lane(monkeypatch):
    whole = History.of(lost_workers(60))
    monkeypatch.setattr("elasticdl.packages.page.history.lanes.MOST_GONE", 4)
    history = History.of(lost_workers(60))

    names = [lane.name for lane in history.lanes]
    assert names[0] == "earlier workers"
    assert len(names) <= 9
    assert names[-4:] == [f"worker-{index}" for index in range(56, 60)]
    assert history.goodput() == whole.goodput()
    assert history.num_lost == {"worker": 60}
    sums = [sum(lane.row.amounts for lane in one.lanes) for one in (history, whole)]
    assert (sums[0] == sums[1]).all()
    assert len(history._progress) <= 9
    # A page that is open gets the lanes that are left.
    assert board(history, history.version, whole.bins.generation)["whole"]
    earlier = next(lane for lane in history.lanes)
    assert earlier.num_processes == 60 - len(names) + 1
    parts = [ord(code) - ord("0") for code in cells(earlier.row, 0, NUM_CELLS, 0.5)[1::2]]
    assert max(parts) == 32


def test_process_that_left_as_expected_has_no_seconds_more():
    left = fact(BEGAN + 14.0, "left", process="worker 0", reason="finished")
    assert History.of([*beats(10), left]).goodput().seconds == pytest.approx(10.0)


def test_successor_at_the_same_index_begins_anew():
    later = list(beats(5, index=0, began=BEGAN + 12.0))
    history = History.of([*beats(10), *later])
    worker = lane(history, "worker-0")
    assert worker.num_processes == 2
    assert worker.seconds["train"] == pytest.approx(15.0)
    assert history.progress.amounts[:, RECORDS].sum() == pytest.approx(1500)


def test_waiting_for_a_process_is_pending():
    waits = fact(BEGAN, "pending", process="worker 0", why="no room")
    runs = fact(BEGAN + 7.0, "runs", process="worker 0")
    history = History.of([waits, runs, *beats(3, began=BEGAN + 7.0)])
    assert history.goodput().losses == {str(Label.PENDING): pytest.approx(7.0)}


def test_training_of_records_that_a_ps_replica_had_lost_does_not_count_again():
    recovered = fact(
        BEGAN + 20, "ps recovered", "ps replica 1 is back", process="ps replica 1", replica=1,
        version=3, tasks=1, minibatches=4, records=500, is_replayed=True, seconds=1.0,
    )  # fmt: skip
    history = History.of([*beats(20), recovered])
    good = history.goodput()
    assert good.losses == {TRAINED_AGAIN: pytest.approx(20.0 * 500 / 2000)}
    assert good.good == pytest.approx(15.0)


def test_dip_has_the_fact_beside_it_as_its_cause():
    lost = fact(BEGAN + 20.2, "lost", "worker 1 was killed", process="worker 1", reason="killed")
    slow = beats(60, lambda s: "wait for parameters" if 21 <= s <= 25 else "train")
    history = History.of([*slow, lost])
    (dip,) = dips_of(history)
    assert (dip.begin, dip.end) == (BEGAN + 20, BEGAN + 25)
    assert dip.share == 0.0
    assert dip.cause == "worker 1 was killed"


def test_dip_without_a_fact_has_what_workers_did_meanwhile_as_its_cause():
    history = History.of(beats(60, lambda s: "wait for data" if 30 <= s < 33 else "train"))
    (dip,) = dips_of(history)
    assert dip.cause == "workers waited for data"


def test_the_seconds_of_all_workers_are_added_up_once_for_all_dips(monkeypatch):
    asked, add_up = [], dips._of_workers
    monkeypatch.setattr(dips, "_of_workers", lambda one: asked.append(one) or add_up(one))
    history = History.of(beats(120, lambda s: "wait for data" if 20 < s % 40 < 26 else "train"))
    assert len(dips_of(history)) == 3
    assert asked == [history]


def test_dip_that_an_evaluation_explains_is_not_laid_to_a_checkpoint_beside_it():
    written = fact(BEGAN + 28.5, "checkpoint", "checkpoint of version 9 is written", version=9)
    history = History.of([*beats(90, lambda s: "evaluate" if 30 <= s < 60 else "train"), written])
    (dip,) = dips_of(history)
    assert dip.cause == "workers evaluated"


def test_dip_in_which_the_master_stood_still_is_not_laid_to_an_evaluation_beside_it():
    stood = fact(BEGAN + 42.5, "late", "the master stood still for 11.9 s", seconds=11.9)
    evaluated = fact(BEGAN + 30.5, "evaluation", "the evaluation", metrics={"auc": 0.5})
    slow = beats(90, lambda s: "idle" if 31 <= s <= 42 else "train")
    (dip,) = dips_of(History.of([*slow, evaluated, stood]))
    assert dip.cause == "the master stood still for 11.9 s"


@pytest.mark.parametrize(
    ("event", "explains"), [("evaluation", True), ("late", True), ("paused", False)]
)
def test_what_is_told_when_it_is_over_explains_the_dip_that_ends_with_it(event, explains):
    told = fact(BEGAN + 32.4, event, f"the {event}", metrics={"auc": 0.5}, why="", seconds=2.0)
    slow = beats(60, lambda s: "wait for parameters" if s in (31, 32) else "train")
    history = History.of([*slow, told])
    (dip,) = dips_of(history)
    assert (dip.cause == f"the {event}") == explains


def test_steady_job_has_no_dip():
    assert dips_of(History.of(beats(60))) == []
    assert dips_of(History()) == []


def test_points_are_thinned_and_the_last_one_is_kept():
    rates = (fact(BEGAN + n, "learning rate", learning_rate=1.0 / n) for n in range(1, 5000))
    history = History.of(rates)
    items = history.learning_rates.items
    assert MOST_POINTS / 2 <= len(items) <= MOST_POINTS + 1
    assert items[-1]["value"] == 1.0 / 4999


def test_changes_since_a_version_make_the_whole_again():
    """As the page does it: keep what it has, cut at `from`, add what comes."""
    events = sorted([*beats(40), *beats(40, index=1)], key=lambda event: event["time"])
    history, kept = History(), {}
    version, generation, throughput = -1, -1, []
    for number, event in enumerate(events):
        history.add(event)
        if number % 7 and number != len(events) - 1:
            continue
        said = board(history, version, generation)
        json.dumps(said, allow_nan=False)
        version, generation = said["version"], said["generation"]
        first = said["series"]["from"]
        throughput = throughput[:first] + [0.0] * (first - len(throughput))
        throughput += said["series"]["throughput"]
        for one in said["lanes"]:
            before = kept.get(one["name"], "")[: 4 * one["from"]].ljust(4 * one["from"], ".")
            kept[one["name"]] = before + one["cells"]
    whole = board(history)
    assert whole["whole"]
    assert throughput == whole["series"]["throughput"]
    assert kept == {one["name"]: one["cells"] for one in whole["lanes"]}
    assert board(history, version, generation)["lanes"] == []


def test_cells_have_their_two_largest_labels():
    events = [usage(BEGAN + 1.0, {"train": 0.75, "wait for data": 0.25})]
    (one,) = board(History.of(events))["lanes"]
    assert one["cells"] == "bHc8"  # 24 and 8 parts of 32


def test_numbers_that_json_does_not_know_are_null():
    bad = fact(BEGAN, "evaluation", metrics={"auc": float("nan"), "loss": float("inf")})
    said = board(History.of([bad]))
    (point,) = said["points"]["evaluation"]
    assert point["metrics"] == {"auc": None, "loss": None}


def evaluations(metric, *values):
    return [
        fact(BEGAN + second, "evaluation", metrics={metric: value})
        for second, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("metric", "values", "found"),
    [
        ("auc", (0.7, 0.8, 0.75), (0.8, 1.0, 0.75)),
        ("cross_entropy", (0.7, 0.6, 0.65), (0.6, 1.0, 0.65)),
        ("auc", (0.7, 0.8), (0.8, 1.0, None)),
        ("auc", (0.8, 0.8), (0.8, 0.0, 0.8)),
        ("auc", (float("nan"), 0.8, None), (0.8, 1.0, None)),
        ("auc", (0.7,), None),  # of one there is no best
        ("profit", (0.7, 0.8), None),  # nothing tells whether more is better
    ],
)
def test_the_best_evaluation_is_the_first_of_the_best_by_what_its_name_tells(metric, values, found):
    said = board(History.of(evaluations(metric, *values)))["bests"]
    told = [(one["value"], one["time"] - BEGAN, one["now"]) for one in said]
    assert told == ([] if found is None else [found])


def test_the_newest_version_of_an_export_is_on_the_page():
    events = [fact(BEGAN + at, "version exported", number=at) for at in (1, 2)]
    (point,) = board(History.of(events))["points"]["export"]
    assert (point["number"], point["time"]) == (2, BEGAN + 2)


def test_the_best_evaluation_of_the_flag_comes_first_with_its_checkpoint():
    one, two = ({"auc": 0.7, "y/profit": 3.0}, {"auc": 0.8, "y/profit": 5.0})
    said = {"metric": "y_profit", "mode": "min", "value": 3.0, "version": 10}
    events = [
        fact(BEGAN, "evaluation", metrics=one),
        fact(BEGAN, "best evaluation", **said),
        fact(BEGAN + 1, "checkpoint", version=10, is_best=True),
        fact(BEGAN + 2, "evaluation", metrics=two),
        fact(BEGAN + 3, "checkpoint", version=20),
    ]
    assert board(History.of(events))["bests"] == [
        dict(metric="y/profit", value=3.0, time=BEGAN, now=5.0, version=10),
        dict(metric="auc", value=0.8, time=BEGAN + 2, now=None, version=None),
    ]


def test_a_model_overfits_until_it_is_better_than_ever():
    history = History.of(evaluations("auc", 0.8, 0.7, 0.6))
    history.add(fact(BEGAN + 3, "overfitting", "the model overfits", metric="auc"))
    assert board(history)["overfitting"] == "the model overfits"
    history.add(fact(BEGAN + 4, "evaluation", metrics={"auc": 0.7}))
    assert board(history)["overfitting"] == "the model overfits"
    history.add(fact(BEGAN + 5, "evaluation", metrics={"auc": 0.9}))
    assert board(history)["overfitting"] == ""


def test_unknown_event_is_kept_as_a_fact_and_breaks_nothing():
    history = History.of([fact(BEGAN, "levitated", "it flies", height=3)])
    assert history.facts[0]["text"] == "it flies"
