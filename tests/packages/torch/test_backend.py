"""How the program finds PyTorch; none of these tests needs it."""

import subprocess
import sys

import pytest

from elasticdl import ArrayModel
from elasticdl.backends.exported import backend_of_export
from elasticdl.backends.known import known
from elasticdl.backends.load import load_saved_model
from elasticdl.data.base import Metadata
from elasticdl.errors import ModelError
from tests.unit.backends.conftest import make_spec


def test_an_export_of_another_framework_is_named(tmp_path):
    (tmp_path / "model.safetensors").touch()
    assert backend_of_export(tmp_path) is known()["torch"]
    spec = make_spec(model=lambda: ArrayModel([], None, None, None))
    with pytest.raises(ModelError, match="is an export of PyTorch, but the model function returns"):
        load_saved_model(spec, Metadata(), tmp_path, None)


def test_to_know_the_backend_imports_no_framework():
    script = "from elasticdl.backends.known import known; known(); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert not {"torch", "keras", "tensorflow", "jax"} & set(done.stdout.split()), done.stderr
