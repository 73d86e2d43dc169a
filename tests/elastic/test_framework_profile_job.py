"""`elasticdl profile --framework` of real jobs: each worker has a trace of its framework's work."""

import json
from pathlib import Path

import pytest

from tests.elastic.running_job import RunningJob, elasticdl, run
from tests.elastic.synthetic import write_flights

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"
WORKERS = ["worker-0", "worker-1"]
NUM_STEPS = 5

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


def profiled(folder, model):
    """Profile two workers of a job that goes on for long; return it, and the folder of traces."""
    write_flights(folder, 20_000, 0)
    words = elasticdl(
        "train",
        model_zoo=ZOO,
        model_def=model,
        training_data=folder / "train.recordio",
        distribution_strategy="ParameterServerStrategy",
        num_workers=2,
        num_ps_pods=1,
        minibatch_size=64,
        num_epochs=1_000,  # it is ended once it was profiled
        heartbeat_seconds=0.2,
        job_dir=folder / "job",
    )
    with RunningJob(folder, words) as job:
        job.until(lambda status: status.num_workers_alive == 2)
        until_both_train(job)
        output = folder / "trace.json"
        flags = {"steps": NUM_STEPS, "output": output, "wait_seconds": 120}
        done = run(elasticdl("profile", job.job_dir, "--framework", **flags))
        for name in WORKERS:
            assert f"{folder / 'trace' / name}: by the framework's own profiler" in done.stdout
        assert not list((job.job_dir / "profile").iterdir())
    assert sorted(path.name for path in (folder / "trace").iterdir()) == WORKERS
    assert len(spans_of(output, "compute")) == 2 * NUM_STEPS
    return job


def until_both_train(job):
    """Wait until each worker has said that it has trained something."""

    def train(_):
        steps = {e["index"]: e["num_minibatches"] for e in job.events("progress")}
        return len([count for count in steps.values() if count > 0]) == 2

    job.until(train)


def spans_of(path, stage):
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event["ph"] == "X" and event["name"] == stage]


@pytest.mark.torch
def test_each_worker_of_a_job_in_pytorch_has_a_trace_of_its_own_operations(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")
    job = profiled(tmp_path, "flights.deepfm_torch.forward")
    pids = {event["process"]: event["pid"] for event in job.events("registered")}
    for index, name in enumerate(WORKERS):
        trace = json.loads((tmp_path / "trace" / name / "torch.json").read_text())
        operations = [e for e in trace["traceEvents"] if e.get("cat") == "cpu_op"]
        assert {e["pid"] for e in operations} == {pids[f"worker {index}"]}
        names = [e["name"] for e in operations]
        # The layers' products, forward and backward, in each step but the first and the last.
        assert names.count("aten::addmm") >= NUM_STEPS - 2
        assert any("AddmmBackward" in name for name in names)


@pytest.mark.keras
def test_each_worker_of_a_job_in_keras_has_a_trace_of_its_own_operations(tmp_path):
    pytest.importorskip("tensorflow", reason="this needs elasticdl-train[tensorflow]")
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    profiled(tmp_path, "flights.deepfm.forward")
    for name in WORKERS:
        (path,) = (tmp_path / "trace" / name / "plugins" / "profile").rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        (plane,) = [plane for plane in space.planes if plane.name == "/host:CPU"]
        metadata = plane.event_metadata
        found = [metadata[event.metadata_id].name for line in plane.lines for event in line.events]
        products = [name for name in found if "MatMul" in name.rpartition(":")[2]]
        backward = [name for name in products if "gradient_tape" in name]
        forward = len(products) - len(backward)
        # The layers' products in each step but the first and the last.
        assert min(forward, len(backward)) >= NUM_STEPS - 2, sorted(set(found))
