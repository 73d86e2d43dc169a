"""What is packed into a message comes out as it went in."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.job import (
    Finished,
    Lease,
    MeasuredWindow,
    Outcome,
    Position,
    Progress,
    Role,
    Shard,
    Task,
    TaskKind,
    TaskReport,
    Wait,
)
from elasticdl.job.status import BestEvaluation, EpochLedger, JobStatus, WindowStatus
from elasticdl.rpc import codec, messages
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.codec import Codec, MessageError

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
NAMES = st.text(st.characters(codec="utf-8"), max_size=10)
SHARDS = st.builds(Shard, NAMES, INT64, INT64)
TASKS = st.builds(
    Task, INT64, st.sampled_from(TaskKind), SHARDS, st.integers(0, 2**31 - 1), st.integers(-1, 99)
)


def through_the_wire(message):
    return type(message).FromString(message.SerializeToString())


@given(TASKS, INT64, st.booleans(), FLOATS)
def test_lease(task, number, is_suspect, late_before):
    lease = Lease(task, number, is_suspect=is_suspect, late_before=late_before)
    assert messages.ANSWER.unpack(through_the_wire(messages.ANSWER.pack(lease))) == lease


@given(st.builds(Position, INT64, INT64, INT64, NAMES, FLOATS, st.booleans()))
def test_position(position):
    packed = through_the_wire(messages.POSITION.pack(position))
    assert messages.POSITION.unpack(packed) == position


@pytest.mark.parametrize("answer", [Wait(0.25), Finished()])
def test_answer_without_a_task(answer):
    packed = through_the_wire(messages.ANSWER.pack(answer))
    assert messages.ANSWER.unpack(packed) == answer


@given(
    st.builds(
        TaskReport,
        task_id=INT64,
        lease=INT64,
        outcome=st.sampled_from(Outcome),
        message=NAMES,
        fatal=st.booleans(),
        num_records=INT64,
        loss_sum=FLOATS,
        model_version=INT64,
        staleness_sum=INT64,
        staleness_max=INT64,
        num_minibatches=INT64,
        skipped=st.lists(INT64, max_size=3).map(tuple),
        num_examples=INT64,
        skipped_examples=st.lists(INT64, max_size=3).map(tuple),
        num_late=INT64,
        num_gone=INT64,
        time=FLOATS,
        windows=st.lists(
            st.builds(MeasuredWindow, INT64, INT64, INT64, FLOATS, INT64, st.just({})), max_size=2
        ).map(tuple),
        metric_states=st.just({}),
        metrics=st.dictionaries(NAMES, FLOATS, max_size=3),
    )
)
def test_report(report):
    packed = through_the_wire(messages.REPORT.pack(report))
    assert messages.REPORT.unpack(packed) == report


@given(st.builds(Progress, INT64, FLOATS, INT64, INT64, st.dictionaries(NAMES, FLOATS, max_size=3)))
def test_progress(progress):
    packed = through_the_wire(messages.PROGRESS.pack(progress))
    assert messages.PROGRESS.unpack(packed) == progress


@pytest.mark.parametrize("loss", [None, 0.0, 1.5])
def test_status(loss):
    status = JobStatus(
        job_name="job",
        status="running",
        message="all is well",
        seconds=1.5,
        epoch=1,
        num_epochs=3,
        tasks_todo=4,
        tasks_doing=5,
        tasks_done=6,
        records_done=7,
        records_total=8,
        records_per_second=9.5,
        loss=loss,
        model_version=10,
        mean_staleness=0.5,
        max_staleness=2,
        metrics={"out/auc": 0.75},
        num_workers_alive=2,
        num_ps_alive=1,
        ledger=(EpochLedger(0, 5, 4, 0, 1), EpochLedger(1, 5, 5, 0, 0, 9)),
        skipped=("epoch 0, minibatch 3",),
        checkpoints=(100, 200),
        output="out",
        best=BestEvaluation("out/auc", "max", 0.75, 100, 2, None if loss is None else 100),
        overfitting="the model overfits",
        num_late=3,
        watermark=1.5e9,
        windows=(
            WindowStatus(1.2e9, 60.0, 10, 5, loss, {"out/auc": 0.75}, is_over=True),
            WindowStatus(1.2e9 + 60, 60.0, 1),
        ),
    )
    packed = through_the_wire(messages.STATUS.pack(status))
    assert messages.STATUS.unpack(packed) == status


def test_metric_states_are_bit_for_bit():
    states = {
        "out/auc": [np.random.default_rng(0).normal(size=(3, 2)), np.zeros(0)],
        "mean": [np.array(0.1), np.arange(6.0).reshape(2, 3).T],
        "none": [],
    }
    packed = [through_the_wire(m) for m in codec.states_to_message(states)]
    found = codec.states_from_message(packed)
    assert found.keys() == states.keys()
    for name, arrays in states.items():
        for before, after in zip(arrays, found[name], strict=True):
            np.testing.assert_array_equal(after, before, strict=True)
            assert after.flags.writeable


@pytest.mark.parametrize(
    ("shape", "num_bytes"), [((2,), 8), ((-1,), 8), ((2**62, 4), 0), ((2**32, 2**32, 2**32), 0)]
)
def test_array_that_does_not_fill_its_shape_is_refused(shape, num_bytes):
    array = pb.Array(shape=shape, data=bytes(num_bytes))
    with pytest.raises(MessageError, match="metric 'm': expected float64 of shape"):
        codec.states_from_message([pb.MetricState(name="m", arrays=[array])])


@pytest.mark.parametrize("role", Role)
def test_role(role):
    assert messages.role_from_message(messages.role_to_message(role)) is role


def test_numbers_without_a_meaning_are_refused():
    with pytest.raises(MessageError, match="expected a role, found number 0"):
        messages.role_from_message(0)
    with pytest.raises(MessageError, match=r"TaskReport\.outcome: .* done, .*, found 77"):
        messages.REPORT.unpack(pb.TaskReport(outcome=77))
    with pytest.raises(MessageError, match=r"Task\.kind: .* training, .*, found 0"):
        messages.ANSWER.unpack(pb.LeaseResponse(lease=pb.Lease(task=pb.Task(id=1))))
    with pytest.raises(MessageError, match="empty answer"):
        messages.ANSWER.unpack(pb.LeaseResponse())


def test_a_dataclass_and_a_message_with_other_fields_are_refused():
    @dataclass
    class Wrong:
        name: str
        start: int
        stop: int

    with pytest.raises(TypeError, match="Wrong: end, stop is not a field of its message too"):
        Codec(Wrong, pb.Shard)
