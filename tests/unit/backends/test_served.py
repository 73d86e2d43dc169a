"""What a model that is served gives, by name."""

from types import SimpleNamespace

import pytest

from elasticdl.backends import served
from elasticdl.backends.served import load_served, outputs_by_name
from elasticdl.errors import ExportError


@pytest.mark.parametrize(
    ("outputs", "names", "expected"),
    [
        (1, (), {"output": 1}),
        (1, ["score"], {"score": 1}),
        ([1, 2], (), {"output_0": 1, "output_1": 2}),
        ((1, 2), ["a", "b"], {"a": 1, "b": 2}),
        ({"a": 1, "b": None}, (), {"a": 1}),
        ({"a": 1, "b": {"c": 2, "d": [3, 4]}}, (), {"a": 1, "b_c": 2, "b_d_0": 3, "b_d_1": 4}),
        ([1, {"c": 2}], (), {"output_0": 1, "output_1_c": 2}),
        ({"a": {"b": 1, "c": 2}, "a_b": 3}, (), {"a_b": 3, "a_b_1": 1, "a_c": 2}),
        ({"z": 1, "b": [2], "a": 3}, (), {"a": 3, "z": 1, "b_0": 2}),
    ],
)
def test_parts_of_outputs_have_names(outputs, names, expected):
    assert list(outputs_by_name(outputs, names).items()) == list(expected.items())


def test_a_framework_that_is_missing_is_named_with_its_remedy(tmp_path, monkeypatch):
    def of_no_framework(folder):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    (tmp_path / "program").touch()
    backend = SimpleNamespace(program="program", served=of_no_framework)
    monkeypatch.setattr(served, "known", lambda: {"it": backend})
    with pytest.raises(ExportError, match=r"No module named 'torch', .*; pip install .*'torch"):
        load_served(tmp_path)
