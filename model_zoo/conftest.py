"""Fixtures for the tests of all models: they run jobs of a model file by the command line."""

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ZOO = Path(__file__).parent
DENSE = ("cifar10", "iris", "mnist")  # models without embedding tables
# The script forbids the import of elasticdl: an export must work without it.
SCORE = """
import json, sys
sys.modules["elasticdl"] = None
import numpy as np
import tensorflow as tf
features = {
    name: tf.constant(values if isinstance(values[0][0], str) else np.array(values, dtype))
    for name, (dtype, values) in json.loads(sys.argv[2]).items()
}
loaded = tf.saved_model.load(sys.argv[1])
print(json.dumps(loaded.serve(features).numpy().tolist()))
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave whole jobs of the zoo to `make test-long`."""
    for item in items:
        if "commands" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.long)


@dataclass
class Commands:
    """Commands of elasticdl on one model file. Their results are in `folder`."""

    model_def: str
    folder: Path

    def run(self, command, *flags):
        """Run a job's command; return its summary."""
        summary = self.folder / f"{command}.json"
        summary.unlink(missing_ok=True)
        own = [f"--model_zoo={ZOO}", f"--model_def={self.model_def}", f"--summary={summary}"]
        self.call(command, *own, *flags)
        return json.loads(summary.read_text())

    def call(self, *words):
        """Run any command. A failure shows all of its output."""
        program = "from elasticdl.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=550,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def score(self, features):
        """Return outputs of the model in `folder / "export"`, by TensorFlow without elasticdl.

        `features`: name -> NumPy array of (records, 1).
        """
        columns = {name: (str(array.dtype), array.tolist()) for name, array in features.items()}
        done = subprocess.run(
            [sys.executable, "-c", SCORE, str(self.folder / "export"), json.dumps(columns)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def commands(tmp_path):
    """Return a function that returns the commands of a model file."""
    return lambda model_def: Commands(model_def, tmp_path)


@pytest.fixture
def strategy(request):
    """Return the flags of the strategy that suits a model."""
    if request.path.parent.name in DENSE:
        return ["--distribution_strategy=AllreduceStrategy", "--num_workers=2"]
    return ["--distribution_strategy=ParameterServerStrategy", "--num_workers=1", "--num_ps_pods=2"]


@pytest.fixture
def load_zoo():
    """Return a function that imports a module of the zoo like a job."""
    if str(ZOO) not in sys.path:
        sys.path.insert(0, str(ZOO))
    return importlib.import_module
