"""Towers of PyTorch on model servers: counted once whoever is killed, trained as in the worker."""

import numpy as np
import pytest

from tests.elastic.running_job import run
from tests.packages.model_servers.towers_job import (
    STRATEGIES,
    check_counts_of_a_struck_job,
    comparable,
    words,
    write,
)

pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")

from safetensors.numpy import load_file

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_in_a_tower_is_counted_once_whoever_is_killed(tmp_path, strategy):
    expected = check_counts_of_a_struck_job(tmp_path, "towers_torch", strategy, num_epochs=6)
    weights = load_file(tmp_path / "model" / "model.safetensors")
    np.testing.assert_array_equal(weights["meetings.tower.count"], expected)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_model_is_trained_as_with_its_tower_within_the_worker(tmp_path, strategy):
    found = []
    for number in (0, 2):
        folder = tmp_path / str(number)
        write(folder, "clicks_torch")
        run(words(folder, "clicks_torch", num_model_servers=number, **comparable(strategy)))
        weights = load_file(folder / "model" / "model.safetensors")
        rows = load_file(folder / "model" / "tables" / "inner.safetensors")
        order = np.argsort(rows["keys"])
        found.append({**weights, "rows": rows["rows"][order], "keys": rows["keys"][order]})
    assert found[0].keys() == found[1].keys()
    for name, values in found[0].items():
        np.testing.assert_allclose(found[1][name], values, atol=1e-5, err_msg=name)
