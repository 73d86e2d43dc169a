"""What TensorBoard would read of the files that a job writes."""

import dataclasses
import struct

import numpy as np
import pytest

from elasticdl.errors import CheckpointError
from elasticdl.job.status import no_status
from elasticdl.packages.trackers.tensorboard import Summaries

pytest.importorskip("tensorboardX", reason="this needs elasticdl-train[tensorboard]")


def scalars(folder):
    """Return (name, step) -> value of all event files, by the format's own framing."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
            at += 12 + length + 4
    return found


def status(version, **more):
    return dataclasses.replace(
        no_status("job", 1), model_version=version, records_per_second=100.0, **more
    )


def test_numbers_stand_at_the_update_at_which_they_were_measured(tmp_path):
    summaries = Summaries(tmp_path)
    summaries.take(status(10, loss=0.5, metrics={"auc": 0.75}), 0.1, is_last=True)
    summaries.take(status(20, loss=0.25, metrics={"auc": 0.75}), 0.1, is_last=True)
    summaries.close()
    found = scalars(tmp_path)
    assert found["loss/training", 10] == 0.5
    assert found["loss/training", 20] == 0.25
    assert found["auc/evaluation", 10] == 0.75
    assert ("auc/evaluation", 20) not in found  # nothing was evaluated between
    assert found["learning_rate", 20] == pytest.approx(0.1)
    assert found["throughput/records_per_second", 10] == 100.0


def test_a_loss_that_is_no_number_and_a_job_that_has_not_begun_write_nothing(tmp_path):
    summaries = Summaries(tmp_path)
    summaries.take(status(0, loss=1.0), None, is_last=True)
    summaries.take(status(1, loss=float("nan")), None, is_last=True)
    summaries.close()
    assert {name for name, _ in scalars(tmp_path)} == {"throughput/records_per_second"}


def test_no_more_than_once_a_second_is_written_but_for_the_last(tmp_path):
    summaries = Summaries(tmp_path)
    for version in range(1, 100):
        summaries.take(status(version, loss=1.0), None)
    summaries.take(status(100, loss=1.0), None, is_last=True)
    summaries.close()
    steps = sorted(step for name, step in scalars(tmp_path) if name == "loss/training")
    assert steps[0] == 1
    assert steps[-1] == 100
    assert len(steps) <= 3


def histograms(folder):
    """Return (name, step) -> (smallest, largest, number) of all histograms."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in folder.rglob("events.out.tfevents.*"):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            for value in event.summary.value:
                if value.HasField("histo"):
                    histogram = value.histo
                    found[value.tag, event.step] = histogram.min, histogram.max, histogram.num
            at += 12 + length + 4
    return found


def test_histograms_of_parameters_leave_out_what_is_no_number(tmp_path):
    summaries = Summaries(tmp_path)
    values = np.array([[1.0, 2.0], [np.nan, 4.0]], np.float32)
    summaries.take_parameters(30, lambda: {"kernel": values, "bias": np.full(3, np.nan)})

    def gone():
        raise CheckpointError("it was deleted")

    summaries.take_parameters(40, gone)
    summaries.take(status(50, loss=0.5), None, is_last=True)  # it goes on
    summaries.close()
    assert histograms(tmp_path) == {("kernel", 30): (1.0, 4.0, 3.0)}
    assert scalars(tmp_path)["loss/training", 50] == 0.5
