"""Cut the tests of a run into parts that take about as long as each other."""

from collections import Counter
from collections.abc import Iterable


def slice_of(groups: Iterable[str], number: int, count: int) -> set[str]:
    """Return the groups of one part; each group is whole, and in one part.

    Neighbours come into different parts: tests of one kind take about as long.

    Args:
        groups: Of each test the group that it is in.
        number: Which part, from 0.
        count: How many parts there are.
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
