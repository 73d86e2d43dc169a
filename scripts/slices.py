"""Cuts the tests of a run into parts of about equal time."""

from collections import Counter
from collections.abc import Iterable


def slice_of(groups: Iterable[str], number: int, count: int) -> set[str]:
    """Return the groups of one part. Each group is whole and in one part only.

    Neighbours go to different parts, because tests of one kind take about equal times.

    Args:
        groups: The group of each test.
        number: The number of the part, from 0.
        count: The number of parts.
    """
    if not 0 <= number < count:
        raise ValueError(f"expected a slice from 0 to {count - 1}, found {number}")
    parts: list[set[str]] = [set() for _ in range(count)]
    sizes = [0] * count
    for group, num_tests in sorted(Counter(groups).items(), key=lambda pair: (-pair[1], pair[0])):
        smallest = sizes.index(min(sizes))
        parts[smallest].add(group)
        sizes[smallest] += num_tests
    return parts[number]
