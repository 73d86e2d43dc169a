"""A redo log on a volume outlives the machine of the replica that has written it."""

import pytest

from elasticdl._core import Store
from elasticdl.ps import redo_folder

LIMIT = 1 << 20


@pytest.mark.parametrize(
    ("system", "counts"),
    [
        ("that of the journal", True),
        ("another, since the master's machine was lost", False),
        ("", False),  # the master does not say
    ],
)
def test_the_log_of_a_lost_machine_counts_as_long_as_the_journal_is_whole(tmp_path, system, counts):
    Store(0, 1).redo(tmp_path, LIMIT)
    redo_folder.note(str(tmp_path), "that of the journal")
    (tmp_path / "boot").write_text("of another machine\n")

    redo_folder.take_over(str(tmp_path), system)
    Store(0, 1).redo(tmp_path, LIMIT)

    sealed = list(tmp_path.glob("00000001-*.redo"))  # else it was removed
    assert len(sealed) == counts


def test_a_replica_without_a_log_begins_one(tmp_path):
    folder = str(tmp_path / "new")
    redo_folder.take_over(folder, "that of the journal")
    Store(0, 1).redo(folder, LIMIT)
