"""What is found wrong with settings of PyTorch before a job starts (packages/torch/checks.py)."""

import pytest

from elasticdl.cli.preflight import check
from elasticdl.errors import ModelError
from tests.unit.cli.test_preflight import MODEL, config, place

__all__ = ["place"]


def test_a_compiler_of_pytorch_is_not_for_keras(place):
    model = place / "zoo" / "mnist" / "model.py"
    model.write_text(MODEL + "import keras\n")
    with pytest.raises(ModelError, match=r"--torch_compile=true: .*imports keras"):
        check(config(torch_compile="true"))
    model.write_text(MODEL + "import keras, torch\n")
    check(config(torch_compile="true"))
