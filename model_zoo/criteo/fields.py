"""The fields of a record of the Criteo-shaped workload: 13 numbers, 26 categories, a label.

The numbers of categories come from the Criteo display advertising data (a few huge, many tiny).
The huge ones are scaled so that there are ten million ids in all. Ids of all fields share one
range, so one table has all rows.
"""

import itertools

NUM_NUMBERS = 13
NUM_IDS = 10_000_000
LARGE = 50_000
"""Fields above this are scaled, so that the sizes add up to `NUM_IDS`."""

CRITEO_SIZES = (
    *(1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194),
    *(27, 14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)


def field_sizes() -> tuple[int, ...]:
    """Return the number of ids of each field; they add up to `NUM_IDS`."""
    small = sum(size for size in CRITEO_SIZES if size <= LARGE)
    scale = (NUM_IDS - small) / sum(size for size in CRITEO_SIZES if size > LARGE)
    sizes = [int(size * scale) if size > LARGE else size for size in CRITEO_SIZES]
    sizes[sizes.index(max(sizes))] += NUM_IDS - sum(sizes)
    return tuple(sizes)


SIZES = field_sizes()
OFFSETS = (0, *itertools.accumulate(SIZES[:-1]))
"""First id of each field."""
