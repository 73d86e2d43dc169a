"""An exported folder appears whole, whatever was left beside it."""

import pytest

from elasticdl.checkpoints.exports import partial_folder, put_in_place
from elasticdl.errors import CheckpointError


@pytest.fixture
def write(tmp_path):
    def write(attempt, content):
        partial = partial_folder(tmp_path / "model", attempt)
        partial.mkdir()
        (partial / "weights").write_text(content)
        return partial

    return write


def test_what_killed_attempts_have_left_goes_once_one_is_complete(tmp_path, write):
    write(1, "half")
    write(2, "half")
    put_in_place(write(3, "whole"), tmp_path / "model", 3)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "weights").read_text() == "whole"


def test_a_first_attempt_takes_the_place_of_nothing_but_an_empty_folder(tmp_path, write):
    (tmp_path / "model").mkdir()
    put_in_place(write(1, "first"), tmp_path / "model", 1)
    with pytest.raises(CheckpointError, match="expected a folder that is new or empty"):
        put_in_place(write(1, "again"), tmp_path / "model", 1)
    put_in_place(write(2, "second"), tmp_path / "model", 2)
    assert (tmp_path / "model" / "weights").read_text() == "second"
