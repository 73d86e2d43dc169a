"""The columns of Criteo's lines as `elasticdl data convert --from=criteo` writes them.

There are 13 whole numbers, each as a number and as the id of its bucket, and 26 hashed categories.
The statistics of `elasticdl data analyze` (`--statistics`) give the boundaries of buckets and the
numbers of hash buckets. The defaults below hold without statistics.
"""

from elasticdl.preprocessing import statistics
from elasticdl.preprocessing.tabular import Bucket, Category, Label, Number, Table

NUMBERS = [f"I{number}" for number in range(1, 14)]
CATEGORIES = [f"C{number}" for number in range(1, 27)]
MISSING = -10  # below all that occurs: its bucket is the first
BOUNDARIES = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 300, 1000, 3000, 10_000, 50_000]
DISTINCT = 50_000  # of a category, where nothing was analysed


def boundaries(name):
    """Return the boundaries of a number's buckets. Missing values have their own bucket."""
    found = statistics.get_bucket_boundaries(name, BOUNDARIES)
    return [MISSING + 1, *(boundary for boundary in found if boundary > MISSING + 1)]


def num_bins(name):
    """Return the number of a category's hash buckets: twice its values, for few collisions."""
    return max(100, 2 * statistics.get_distinct_count(name, DISTINCT))


TABLE = Table(
    [
        *(Number(n, log=True, stddev=3.0, missing=MISSING, dtype="int64") for n in NUMBERS),
        *(Bucket(n, boundaries(n), missing=MISSING, dtype="int64") for n in NUMBERS),
        *(Category(n, num_bins(n)) for n in CATEGORIES),
    ],
    label=Label("label", dtype="int64"),
    records="example",
)
