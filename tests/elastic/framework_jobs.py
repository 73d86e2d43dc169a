"""Jobs of the model zoo in each framework, by each strategy, that lose processes."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.elastic.running_job import elasticdl, in_process
from tests.elastic.synthetic import write_flights, write_stripes

ZOO = Path(__file__).resolve().parents[2] / "model_zoo"
PS, RING = "ParameterServerStrategy", "AllreduceStrategy"
HYBRID = "HybridStrategy"
# Nobody imports what is not of the framework of a job, nor what Keras itself seldom needs.
FOREIGN = {
    "keras": ("torch", "sklearn", "pandas", "matplotlib"),
    "torch": ("tensorflow", "keras"),
}


@dataclass(frozen=True)
class FrameworkJob:
    """A job that trains until its model has learned, and what it must come to."""

    framework: str
    strategy: str
    model_def: str
    minibatch_size: int
    write: Callable[[Path, int, int], None]
    num_training: int
    num_validation: int
    num_epochs: int
    train: tuple[str, ...]  # flags of the training
    faults: tuple[tuple[float, str, int], ...]  # (share of the work, role, index)
    metric: str
    has_learned: float  # what the metric is then, at least
    resized: tuple[str, ...]  # another strategy, or another number of processes
    varies: float = 2e-5  # of a metric, when a training goes on at a rate that changes nothing

    @property
    def loses_replica(self):
        return any(role == "ps" for _, role, _ in self.faults)

    def words(self, command, *words, **flags):
        own = (f"--model_zoo={ZOO}", f"--model_def={self.model_def}.{self._entry()}")
        size = f"--minibatch_size={self.minibatch_size}"
        return elasticdl(command, *own, size, *words, **flags)

    def run(self, folder, command, *words, **flags):
        """Run a command to its end, which must be a good one, where the framework is imported."""
        done = in_process(*self.words(command, *words, **flags)[3:], cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr

    def environment(self, folder):
        """Return an environment in which other frameworks cannot be imported."""
        blocked = folder / "blocked"
        blocked.mkdir(exist_ok=True)
        for name in FOREIGN[self.framework]:
            (blocked / f"{name}.py").write_text(f"raise AssertionError('a job imports {name}')\n")
        path = os.pathsep.join([str(blocked), os.environ.get("PYTHONPATH", "")])
        return {**os.environ, "PYTHONPATH": path}

    def _entry(self):
        return "custom_model" if self.model_def.startswith("mnist.") else "forward"


def with_tables(framework, strategy, resized, **settings):
    """Return a job of the flights DeepFM, which loses a worker and then a ps replica."""
    is_keras = framework == "keras"
    usual = {
        "minibatch_size": 512,
        "num_training": 50_000,
        "num_validation": 10_000,
        "num_epochs": 2 if is_keras else 4,
        "train": (
            "--num_workers=2",
            "--num_ps_pods=2",
            "--num_minibatches_per_task=5",
            "--evaluation_steps=100",
            "--checkpoint_steps=50",
        ),
        "faults": ((1 / 10, "worker", 0), (1 / 3, "ps", 0)),
    }
    return FrameworkJob(
        framework,
        strategy,
        "flights.deepfm" if is_keras else "flights.deepfm_torch",
        write=write_flights,
        metric="auc" if is_keras else "accuracy",
        has_learned=0.8 if is_keras else 0.5,
        resized=resized,
        **{**usual, **settings},
    )


def without_tables(framework):
    """Return a job of a convolutional network by all-reduce, which loses one of three workers."""
    return FrameworkJob(
        framework,
        RING,
        "mnist.mnist_functional_api" if framework == "keras" else "mnist.model_torch",
        minibatch_size=32,
        write=write_stripes,
        num_training=6_000,
        num_validation=600,
        num_epochs=1,
        train=(
            "--num_workers=3",
            "--num_minibatches_per_task=5",
            "--learning_rate=0.02",
            "--evaluation_steps=40",
            "--checkpoint_steps=30",
        ),
        faults=((1 / 3, "worker", 1),),
        metric="accuracy",
        has_learned=0.7,
        resized=(f"--distribution_strategy={RING}", "--num_workers=2"),
        varies=0.1,  # batch norm goes on to count
    )


REPLICAS = (f"--distribution_strategy={PS}", "--num_workers=1", "--num_ps_pods=3")
KERAS_HYBRID = {  # updates of two small minibatches each, so that there are enough
    "minibatch_size": 256,
    "num_training": 60_000,
    "num_epochs": 2,
    "train": (
        "--num_workers=2",
        "--num_ps_pods=2",
        "--num_minibatches_per_task=10",
        "--evaluation_steps=100",
        "--checkpoint_steps=60",
        "--recovery_seconds=2",
    ),
    "faults": ((1 / 3, "worker", 0), (1 / 2, "ps", 0)),
}
KERAS, LONG = pytest.mark.keras, pytest.mark.long
TORCH = (
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="PyTorch is not installed; make test-torch has it",
    ),
)
# One of each framework is for `make test` and `make test-torch`.
JOBS = [
    pytest.param(with_tables("keras", PS, REPLICAS), id="keras-ps", marks=KERAS),
    pytest.param(
        with_tables("keras", HYBRID, REPLICAS, **KERAS_HYBRID),
        id="keras-hybrid",
        marks=(KERAS, LONG),
    ),
    pytest.param(with_tables("torch", PS, REPLICAS), id="torch-ps", marks=TORCH),
    pytest.param(without_tables("torch"), id="torch-all-reduce", marks=TORCH),
]
