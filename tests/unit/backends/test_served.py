"""What a model that is served gives, by name."""

import pytest

from elasticdl.backends.served import outputs_by_name


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
    ],
)
def test_parts_of_outputs_have_names(outputs, names, expected):
    assert outputs_by_name(outputs, names) == expected
