"""How much memory the next process gets after one has run out of it."""

import pytest

from elasticdl.packages.kubernetes.memory import grown, is_larger


@pytest.mark.parametrize(
    ("had", "asked", "next_one"),
    [
        ("1Gi", "1Gi", "1536Mi"),
        ("1536Mi", "1Gi", "2304Mi"),
        ("3Gi", "1Gi", "4096Mi"),  # four times what was asked, and no more
        ("4Gi", "1Gi", "4096Mi"),
        ("6Gi", "1Gi", "6144Mi"),  # a user's own change of the pod is not taken back
        ("100M", "100M", "144Mi"),
    ],
)
def test_half_as_much_again_up_to_four_times(had, asked, next_one):
    assert grown(had, asked) == next_one


def test_quantities_are_compared_as_numbers():
    assert is_larger("1Gi", "1000Mi")
    assert is_larger("1Gi", "")
    assert not is_larger("", "")
    assert not is_larger("1Gi", "1024Mi")
