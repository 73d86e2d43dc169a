"""An exported folder appears whole, whatever was left beside it."""

import os

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


def test_a_link_to_an_empty_folder_stays_and_leads_to_the_export(tmp_path):
    (tmp_path / "disk" / "empty").mkdir(parents=True)
    link = tmp_path / "model"
    link.symlink_to(tmp_path / "disk" / "empty")
    partial = partial_folder(link, 1)
    partial.mkdir()
    (partial / "weights").write_text("whole")
    put_in_place(partial, link, 1)
    assert link.is_symlink()
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["empty"]
    assert (link / "weights").read_text() == "whole"


def test_a_working_folder_can_be_the_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = type(tmp_path)(".")
    assert partial_folder(place, 1) == tmp_path.with_name(f"{tmp_path.name}.partial-1")


def test_the_root_of_a_volume_is_filled_from_within(tmp_path, monkeypatch):
    root = tmp_path / "model"
    root.mkdir()
    of_kernel = os.path.ismount
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(root) or of_kernel(path))
    before = root.stat().st_ino
    for attempt, content in ((1, "half"), (2, "first"), (3, "second")):
        partial = partial_folder(root, attempt)
        assert partial.is_relative_to(root), "beside it is another disk"
        (partial / "variables").mkdir(parents=True)
        for name in ("weights", "variables/values", "_SUCCESS"):
            (partial / name).write_text(content)
        if attempt > 1:
            put_in_place(partial, root, attempt)
            assert (root / "variables" / "values").read_text() == content
            assert {path.name for path in root.iterdir()} == {"weights", "variables", "_SUCCESS"}
    assert root.stat().st_ino == before, "a mount point cannot be removed"
