"""What a large value looks like as JSON does not depend on how it is taken apart."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.state import encoding
from elasticdl.state.encoding import encoded

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=50,
)


@given(VALUES)
def test_parts_joined_are_what_the_standard_library_gives(value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "_ITEMS", 3)
        patch.setattr(encoding, "_FEW", 2)
        assert "".join(encoded(value)) == json.dumps(value, separators=(",", ":"))


def test_no_part_of_a_large_value_is_large():
    value = {
        "queued": list(range(300_000)),
        "uneven": {n: (1, 2) for n in range(30_000)},
        "created": ["created", {}, [[["shard", n, n] for n in range(30_000)]]],
    }
    parts = list(encoded(value))
    assert max(map(len, parts)) < 100_000
    assert json.loads("".join(parts))["created"] == value["created"]
