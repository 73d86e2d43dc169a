"""The judge says yes to a job that was exact, and no to everything else."""

import dataclasses

import numpy as np
import pytest

from model_zoo.counting import model as counting
from model_zoo.counting import visits
from scripts.chaos.expected import minibatches, sums
from scripts.chaos.faults import Struck, Victim
from scripts.chaos.job import MAX_STALENESS, Model
from scripts.chaos.judge import Evidence, judge, was_ready

NUM_EPOCHS, NUM_IDS, NUM_RECORDS = 3, 600, 1000
FILES = [
    np.random.default_rng(number).integers(NUM_IDS, size=(NUM_RECORDS // 2, 4))
    for number in range(2)
]
TRAINED = minibatches(FILES, NUM_EPOCHS)
KILLED = Struck("ps", 0.5, "training", "kill -9", (Victim("ps", 1, pid=71, when=10.0),))
EVENTS = (
    {"time": 1.0, "event": "registered", "process": "ps replica 1", "pid": 71},
    {"time": 10.1, "event": "lost", "process": "ps replica 1"},
    {"time": 10.5, "event": "registered", "process": "ps replica 1", "pid": 72},
    {"time": 10.6, "event": "ps recovered", "process": "ps replica 1", "lost": []},
    {"time": 20.0, "event": "ended"},
)


def counted(trained):
    """Return the counting model after these minibatches."""
    after = sums(trained, NUM_IDS, counting.NUM_SIGNATURES)
    whole = np.tile(after.vector.astype(np.float32), (counting.COPIES, 1))
    vectors = {"seen_low": whole, "seen_high": whole}
    return Model(after.rows.astype(np.float32), dict(vectors), dict(vectors))


def ledger(**changes):
    line = {"records": NUM_RECORDS, "trained_once": NUM_RECORDS, "repeated": 0, "lost": 0}
    return [{"epoch": epoch, **line, **changes} for epoch in range(NUM_EPOCHS)]


def summary(**changes):
    recoveries = [{"replica": 1}]
    return {
        "ledger": ledger(),
        "recoveries": recoveries,
        "staleness": {"max": 2},
        **changes,
    }


EXACT = Evidence(
    mode="async",
    num_ps=2,
    num_epochs=NUM_EPOCHS,
    planned=["ps"],
    struck=[KILLED],
    trained=TRAINED,
    occurrences=np.bincount(np.concatenate(FILES).ravel(), minlength=NUM_IDS),
    model=counted(TRAINED),
    summary=summary(),
    events=EVENTS,
)


def problems(**changes):
    return judge(dataclasses.replace(EXACT, **changes), counting.NUM_SIGNATURES)


def with_row(key, column, add):
    rows = EXACT.model.rows.copy()
    rows[key, column] += add
    return dataclasses.replace(EXACT.model, rows=rows)


def with_vector(kind, name, values):
    vectors = {**getattr(EXACT.model, kind), name: np.array(values, np.float32)}
    return dataclasses.replace(EXACT.model, **{kind: vectors})


def test_an_exact_job_has_no_problems():
    assert problems() == []


# --- counts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("add", [-1, 1], ids=["lost", "repeated"])
def test_a_row_that_is_off_by_one_is_found(add):
    assert [p for p in problems(model=with_row(7, 0, add)) if p.startswith("the count of id 7 is")]


def test_a_lost_minibatch_is_found():
    (first, *_) = problems(model=counted(TRAINED[1:]))
    assert "the count of id" in first


def test_a_repeated_minibatch_is_found():
    (first, *_) = problems(model=counted([*TRAINED, TRAINED[5]]))
    assert "the count of id" in first


def test_a_task_trained_twice_in_one_epoch_and_never_in_the_next_is_found():
    per_epoch = max(m.task for m in TRAINED if m.epoch == 0) + 1
    twice = [m for m in TRAINED if m.task == per_epoch]
    never = {m.task for m in TRAINED if m.task == 2 * per_epoch}
    mixed = counted([m for m in TRAINED if m.task not in never] + twice)
    np.testing.assert_array_equal(mixed.rows[:, 0], EXACT.model.rows[:, 0])
    assert mixed.dense["seen_low"][0, 0] == EXACT.model.dense["seen_low"][0, 0]
    found = problems(model=mixed)
    assert found
    assert all("signatures" in problem or "seen_" in problem for problem in found)


@pytest.mark.parametrize("kind", ["dense", "state"])
@pytest.mark.parametrize("name", ["seen_low", "seen_high"])
@pytest.mark.parametrize("entry", [0, 1])
def test_a_wrong_dense_parameter_or_state_is_found(kind, name, entry):
    values = getattr(EXACT.model, kind)[name].copy()
    values[-1, entry] += 1
    (found,) = problems(model=with_vector(kind, name, values))
    assert name in found


@pytest.mark.parametrize("kind", ["dense", "state"])
def test_a_model_without_dense_parameters_or_state_is_no_proof(kind):
    (found,) = problems(model=dataclasses.replace(EXACT.model, **{kind: {}}))
    assert "the model has no" in found


def test_expected_minibatches_that_are_not_the_data_are_found():
    occurrences = EXACT.occurrences.copy()
    occurrences[3] += 1
    assert problems(occurrences=occurrences) == [
        "the expected minibatches are not each record once an epoch"
    ]


# --- what the job says ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["records", "trained_once", "repeated", "lost"])
def test_a_ledger_that_is_off_by_one_is_found(name):
    lines = ledger()
    lines[1][name] += 1
    (found,) = problems(summary=summary(ledger=lines))
    assert found.startswith("the ledger of epoch 1 says")


def test_a_ledger_that_lacks_an_epoch_is_found():
    (found,) = problems(summary=summary(ledger=ledger()[:-1]))
    assert "the ledger has epochs [0, 1]" in found


def test_updates_that_were_too_late_are_found_where_the_mode_bounds_them():
    late = summary(staleness={"max": MAX_STALENESS + 1})
    assert problems(summary=late) == []
    (found,) = problems(summary=late, mode="bounded")  # a ps replica was lost
    assert "versions late" in found


# --- faults ---------------------------------------------------------------------------------------


def test_a_fault_that_was_planned_and_not_tried_is_found():
    assert problems(planned=["ps", "worker"]) == ["fault not carried out: worker"]


def test_a_fault_that_found_nobody_is_found():
    nobody = Struck("worker", 0.5, "training", "", (), "no worker alive to strike")
    assert problems(planned=["ps", "worker"], struck=[KILLED, nobody]) == [
        "fault not carried out: worker: no worker alive to strike"
    ]


def test_a_process_that_died_after_the_job_is_no_fault():
    late = dataclasses.replace(KILLED, victims=(Victim("ps", 1, pid=71, when=20.1),))
    assert problems(struck=[late]) == ["fault not carried out: ps: the job had ended before"]


def test_a_missing_recovery_is_found():
    assert problems(summary=summary(recoveries=[])) == [
        "ps replica 1 was lost 1 times, and recovered 0 times"
    ]


def test_the_recovery_of_another_replica_does_not_count():
    assert problems(summary=summary(recoveries=[{"replica": 0}])) == [
        "ps replica 1 was lost 1 times, and recovered 0 times"
    ]


def test_a_replica_lost_twice_must_recover_twice():
    again = dataclasses.replace(KILLED, victims=(Victim("ps", 1, pid=72, when=12.0),))
    lost_again = {"time": 12.1, "event": "lost", "process": "ps replica 1"}
    found = problems(planned=["ps", "ps"], struck=[KILLED, again], events=(*EVENTS, lost_again))
    assert found == ["ps replica 1 was lost 2 times, and recovered 1 times"]


def test_a_loss_that_nobody_noticed_is_found():
    unseen = [event for event in EVENTS if event["event"] != "lost"]
    assert problems(events=unseen) == ["the loss of ps replica 1, pid 71, was never noticed"]


def test_a_loss_that_a_killed_master_had_no_time_to_tell_of_shows_in_its_successor():
    master = Struck("master", 0.5, "training", "", (Victim("master", 0, pid=9, when=10.0),))
    resumed = {"time": 10.3, "event": "resumed"}
    untold = [resumed, *(event for event in EVENTS if event["event"] != "lost")]
    struck, planned = [KILLED, master], ["ps", "master"]
    assert problems(planned=planned, struck=struck, events=untold) == []
    assert problems(
        planned=planned, struck=struck, events=untold, summary=summary(recoveries=[])
    ) == ["ps replica 1 was lost 1 times, and recovered 0 times"]
    alone = [event for event in untold if event["event"] != "registered"]
    assert problems(planned=planned, struck=struck, events=alone) == [
        "the loss of ps replica 1, pid 71, was never noticed"
    ]


def test_a_loss_just_before_the_end_that_nobody_noticed_is_no_fault():
    late = dataclasses.replace(KILLED, victims=(Victim("ps", 0, pid=70, when=19.5),))
    found = problems(planned=["ps", "ps"], struck=[KILLED, late])
    assert found == ["fault not carried out: ps: the job had ended before"]


def test_a_killed_master_must_be_followed_by_another():
    master = Struck("master", 0.5, "training", "", (Victim("master", 0, pid=9, when=5.0),))
    found = problems(planned=["ps", "master"], struck=[KILLED, master])
    assert found == ["the master was killed, and none resumed the job"]
    resumed = ({"time": 5.2, "event": "resumed"}, *EVENTS)
    assert problems(planned=["ps", "master"], struck=[KILLED, master], events=resumed) == []


def test_a_master_that_stood_still_may_take_nobody_as_lost():
    stopped = Victim("master", 0, pid=9, when=12.0, is_back=True)
    struck = [KILLED, Struck("master-stop", 0.5, "training", "", (stopped,))]
    assert problems(planned=["ps", "master-stop"], struck=struck) == []
    silent = {"time": 17.0, "event": "lost", "process": "worker 2", "reason": "unknown"}
    found = problems(planned=["ps", "master-stop"], struck=struck, events=(*EVENTS, silent))
    assert found == ["the master stood still, and took worker 2 as lost for that"]
    killed = Struck("worker", 0.9, "training", "", (Victim("worker", 2, pid=8, when=16.9),))
    planned = ["ps", "master-stop", "worker"]
    assert problems(planned=planned, struck=[*struck, killed], events=(*EVENTS, silent)) == []


def test_a_successor_is_ready_when_it_has_recovered_and_not_before():
    assert was_ready(EVENTS, 1, 71)
    assert was_ready(EVENTS, 1, 72)
    assert not was_ready(EVENTS[:-2], 1, 72)
    assert not was_ready(EVENTS, 1, 73)


# --- --ps_recovery=latest -------------------------------------------------------------------------

LOST = [m for m in TRAINED if m.task == 0 and m.number >= 5]
KEPT = [m for m in TRAINED if m not in LOST]
LOST_EVENTS = [
    {**event, "lost": [(0, 5, 25)]} if event["event"] == "ps recovered" else event
    for event in EVENTS
]


def lost_summary():
    gone, lines = sum(m.num_records for m in LOST), ledger()
    lines[0].update(trained_once=NUM_RECORDS - gone, lost=gone)
    return summary(ledger=lines)


def latest(**changes):
    return problems(**{"num_ps": 1, "summary": lost_summary(), "events": LOST_EVENTS, **changes})


def test_what_the_job_says_was_lost_may_be_missing():
    assert latest(model=counted(KEPT)) == []


def test_more_missing_than_the_job_says_is_found():
    (first, *_) = latest(model=counted(KEPT[1:]))
    assert "the count of id" in first


def test_something_else_missing_than_the_job_says_is_found():
    others = [m for m in TRAINED if not (m.task == 2 and m.number >= 5)]
    assert len(others) == len(KEPT)
    (first, *_) = latest(model=counted(others))
    assert "the count of id" in first


def test_a_replica_of_two_may_have_a_part_of_what_is_lost_and_nothing_else_is_missing():
    half = counted(KEPT).rows.copy()
    half[::2] = EXACT.model.rows[::2]
    other = dataclasses.replace(counted(KEPT), rows=half)
    assert latest(model=other, num_ps=2) == []
    half[::2, 0] -= 1
    (first, *_) = latest(model=other, num_ps=2)
    assert "the count of id" in first


# --- averages of several workers ------------------------------------------------------------------

UNIQUE = [
    np.arange(4 * NUM_RECORDS).reshape(-1, 4)[:486],
    np.arange(4 * NUM_RECORDS).reshape(-1, 4)[486:],
]
VISITED = minibatches(UNIQUE, NUM_EPOCHS)


def rounds_of(trained, size=3):
    """Make rounds of so many minibatches of an epoch, of different tasks."""
    return in_rounds(sorted(trained, key=lambda m: (m.epoch, m.number, m.task)), size)


def in_rounds(trained, size=3):
    return [trained[at : at + size] for at in range(0, len(trained), size)]


def averaged(rounds, weight=lambda minibatch, parts: None):
    """Return the model of visits after these rounds; `weight` may give others than it should."""
    rows = np.zeros((4 * NUM_RECORDS, visits.NUM_VISITS, 3), np.float32)
    total = 0.0
    for number, parts in enumerate(rounds):
        records = sum(m.num_records for m in parts)
        for minibatch in parts:
            share = weight(minibatch, parts)
            share = minibatch.num_records / records if share is None else share
            signature = minibatch.signature(visits.NUM_SIGNATURES)
            total += share * signature
            for key in minibatch.ids.ravel():
                free = np.count_nonzero(rows[key, :, 0])
                rows[key, free] = np.float32(share) * np.array([1, number, signature], np.float32)
    vectors = {"rounds": np.array([len(rounds)]), "signatures": np.array([total])}
    trained = [minibatch for parts in rounds for minibatch in parts]
    signatures = sum(minibatch.signature(visits.NUM_SIGNATURES) for minibatch in trained)
    state = {"rounds": np.array([len(trained)]), "signatures": np.array([signatures])}
    return Model(rows.reshape(len(rows), -1), vectors, state)


@pytest.fixture(scope="module")
def rounds():
    return rounds_of(VISITED)


@pytest.fixture(scope="module")
def together(rounds):
    """Judge a synchronous job with this model."""

    def problems_of(model):
        evidence = dataclasses.replace(
            EXACT,
            mode="synchronous",
            planned=[],
            struck=[],
            trained=VISITED,
            occurrences=np.ones(4 * NUM_RECORDS, np.int64),
            model=model,
            summary=summary(staleness={"max": 0}),
        )
        return judge(evidence, visits.NUM_SIGNATURES)

    return problems_of


def test_exact_averages_have_no_problems(rounds, together):
    assert len({m.num_records for parts in rounds for m in parts}) > 1
    assert together(averaged(rounds)) == []


def test_gradients_that_were_not_weighted_by_their_records_are_found(rounds, together):
    found = together(averaged(rounds, lambda minibatch, parts: 1 / len(parts)))
    assert any("has weight 0.3333, expected" in problem for problem in found)


def test_gradients_that_were_summed_are_found(rounds, together):
    found = together(averaged(rounds, lambda minibatch, parts: 1.0))
    assert any("has weight 1.0000" in problem for problem in found)


def test_a_visit_that_is_missing_is_found(rounds, together):
    found = together(averaged([rounds[0][1:], *rounds[1:]]))
    assert all("was trained 2 times, expected 3" in problem for problem in found)
    assert found


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_record_of_two_minibatches_in_a_round_is_trained_in_both(together, is_lost):
    # As it may be where two epochs meet: both visits come to the columns that were free before.
    first = VISITED[0]
    again = next(
        m
        for m in VISITED
        if m.epoch != first.epoch and 0 < np.isin(first.ids, m.ids).sum() < first.ids.size
    )
    rest = [m for m in VISITED if m is not first and m is not again]
    model = averaged([[first, again], *rounds_of(rest)])
    rows = model.rows.reshape(len(model.rows), visits.NUM_VISITS, 3).copy()
    for key in np.intersect1d(first.ids, again.ids):
        one, other, later, none = rows[key]
        rows[key] = [one if is_lost else one + other, later, none, none]
    model = dataclasses.replace(model, rows=rows.reshape(len(rows), -1))
    assert bool(together(model)) == is_lost


def test_a_visit_too_many_is_found(rounds, together):
    found = together(averaged([*rounds, rounds[0]]))
    assert all("was trained 4 times, expected 3" in problem for problem in found)
    assert found


def test_a_visit_in_another_epochs_minibatch_is_found(rounds, together):
    epochs = [[m for parts in rounds for m in parts if m.epoch == epoch] for epoch in range(3)]
    found = together(averaged(in_rounds([*epochs[0], *epochs[0], *epochs[2]])))
    assert all("trained 2 times in" in p or "was not trained in" in p for p in found)
    assert found


@pytest.mark.parametrize("kind", ["dense", "state"])
def test_vectors_averaged_with_other_weights_are_found(rounds, together, kind):
    model = averaged(rounds)
    vectors = {**getattr(model, kind), "signatures": getattr(model, kind)["signatures"] * 1.001}
    (found,) = together(dataclasses.replace(model, **{kind: vectors}))
    assert "signatures" in found


def test_an_update_that_was_late_is_found_in_synchronous_training(rounds):
    late = dataclasses.replace(
        EXACT,
        mode="synchronous",
        planned=[],
        struck=[],
        trained=VISITED,
        occurrences=np.ones(4 * NUM_RECORDS, np.int64),
        model=averaged(rounds),
        summary=summary(staleness={"max": 1}),
    )
    (found,) = judge(late, visits.NUM_SIGNATURES)
    assert "versions late" in found
