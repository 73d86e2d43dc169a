"""Hybrid jobs in PyTorch: each minibatch counts once in both holders; one worker trains as a loop.

`test_framework_jobs.py` has the flights DeepFM as a hybrid job.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from elasticdl._core import RecordWriter
from tests.elastic.running_job import elasticdl, run
from tests.elastic.visits_job import VisitsJob

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from safetensors.numpy import load_file  # noqa: E402  # it comes with PyTorch

pytestmark = [pytest.mark.torch, pytest.mark.timeout(400)]

VISITS = Path(__file__).with_name("visits_torch.py")
NUM_RECORDS = 9_000
PLAIN = Path(__file__).with_name("plain_torch.py")


def test_each_record_counts_once_in_both_holders(tmp_path):
    with VisitsJob(
        tmp_path,
        num_records=NUM_RECORDS,
        seconds=0.1,
        model=VISITS,
        distribution_strategy="HybridStrategy",
        num_ps_pods=2,
        recovery_seconds=0.3,
        validation_data=tmp_path / "data.recordio",
    ) as job:
        job.until_trained(1_000)
        job.send("worker")
        job.until_event("lost")
        job.until_trained(2_500, also=job.has_checkpoint)
        job.send("ps")
        summary = job.finish()

    (line,) = summary["ledger"]
    assert (line["trained_once"], line["repeated"], line["lost"]) == (NUM_RECORDS, 0, 0)
    assert [recovery["is_replayed"] for recovery in summary["recoveries"]] == [True]
    assert not job.events("world restored")
    dense = load_file(tmp_path / "export" / "model.safetensors")["visits"]
    np.testing.assert_allclose(dense, np.ones(NUM_RECORDS), atol=1e-6)
    table = load_file(tmp_path / "export" / "tables" / "rows.safetensors")
    np.testing.assert_array_equal(table["keys"], np.arange(NUM_RECORDS))
    np.testing.assert_allclose(table["rows"], np.ones((NUM_RECORDS, 1)), atol=1e-6)
    assert summary["metrics"]["mean_visits"] == pytest.approx(1.0, abs=1e-6)


@pytest.fixture
def plain():
    from tests.elastic import plain_torch

    return plain_torch


HYBRID = ["--distribution_strategy=HybridStrategy", "--max_staleness=0"]
PS = ["--distribution_strategy=ParameterServerStrategy", "--max_staleness=0"]
NEEDS_COMPILER = pytest.mark.skipif(
    shutil.which("g++") is None, reason="there is no g++, with which PyTorch compiles"
)


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param([HYBRID], id="hybrid"),
        pytest.param(
            [[*HYBRID, "--torch_compile"]], id="compiled", marks=[pytest.mark.long, NEEDS_COMPILER]
        ),
        pytest.param([PS, HYBRID], id="ps replicas, then hybrid", marks=pytest.mark.long),
        pytest.param([HYBRID, PS], id="hybrid, then ps replicas", marks=pytest.mark.long),
    ],
)
def test_one_worker_and_a_schedule_train_as_a_plain_loop(jobs, plain, tmp_path):
    size, num_minibatches = 32, 12
    rng = np.random.default_rng(0)
    count = size * num_minibatches
    numbers = rng.normal(size=(count, 3))
    # Each minibatch has each id: a row that it lacked would move in PyTorch, by its momentum.
    lines = [f"{i % plain.NUM_IDS},{a:.4f},{b:.4f},{y:.4f}" for i, (a, b, y) in enumerate(numbers)]
    with RecordWriter(str(tmp_path / "data.recordio")) as writer:
        writer.write_many(line.encode() for line in lines)
    for number, flags in enumerate(jobs):
        train_one_worker(tmp_path, number, size, num_minibatches, flags)

    model = plain.Net(torch.nn.Embedding)
    scheduler = plain.optimizer(list(model.parameters()))
    examples = list(plain.feed(Lines(lines), "training", None))
    for at in list(range(0, count, size)) * len(jobs):
        part = examples[at : at + size]
        features = {key: torch.stack([x[key] for x, _ in part]) for key in ("id", "x")}
        scheduler.optimizer.zero_grad()
        plain.loss(torch.stack([y for _, y in part]), model(features)).backward()
        scheduler.optimizer.step()
        scheduler.step()
    wanted = {key: value.numpy() for key, value in model.state_dict().items()}
    export = tmp_path / f"export-{len(jobs) - 1}"
    table = load_file(export / "tables" / "vectors.safetensors")
    np.testing.assert_array_equal(table["keys"], np.arange(plain.NUM_IDS))
    tolerance = {"rtol": 1e-3, "atol": 1e-5}
    np.testing.assert_allclose(table["rows"], wanted.pop("vectors.weight"), **tolerance)
    dense = load_file(export / "model.safetensors")
    assert dense.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(dense[key], value, **tolerance)


def train_one_worker(folder, number, size, num_minibatches, flags):
    """Train one epoch, from where the job before has ended."""
    if number:
        flags = [*flags, f"--checkpoint_dir_for_init={folder / f'checkpoints-{number - 1}'}"]
    words = elasticdl(
        "train",
        *flags,
        model_zoo=PLAIN.parent,
        model_def="plain_torch.forward",
        training_data=folder / "data.recordio",
        num_workers=1,
        num_ps_pods=2,
        minibatch_size=size,
        num_minibatches_per_task=num_minibatches,
        checkpoint_dir=folder / f"checkpoints-{number}",
        output=folder / f"export-{number}",
    )
    run(words, cwd=folder)


class Lines:
    """What `feed` is given, as far as the model asks."""

    def __init__(self, lines):
        self.values = [line.encode() for line in lines]
