"""The file of `--statistics` is read before a job starts."""

import pytest

from elasticdl.cli.preflight import check
from elasticdl.errors import DataError
from tests.unit.cli import test_preflight as core

place = core.place


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("nowhere", "nowhere: cannot be read: No such file"),
        ("data.csv", "data.csv: not a file of `elasticdl data analyze`"),
    ],
)
def test_what_is_no_file_of_statistics_is_refused(place, file, complaint):
    with pytest.raises(DataError, match=complaint):
        check(core.config(statistics=file))
