"""Both ends of the way on which a joiner gets the parameters, without a ring."""

import io
import json
import threading

import numpy as np
import pytest

from elasticdl.collective.rounds import Marks, Minibatch
from elasticdl.errors import CheckpointError
from elasticdl.worker.staging import Giver, Stage, Update, unpack


def update(version, *minibatches, is_skipped=False):
    parts = tuple(Minibatch(task, 1, index, 8, is_skipped) for task, index in minibatches)
    return Update(version, parts, 0.1, (np.ones(2, np.float32),))


def pieces_of(giver, size):
    """Take all that is given, in pieces."""
    pieces, is_last = [], False
    while not is_last:
        piece, is_last = giver.next_piece(size, waits=True)
        pieces.append(piece)
    return pieces


def test_a_store_lacks_the_updates_after_its_version():
    assert update(5, (1, 0)).lacking(5, Marks()) is None
    later = update(6, (1, 1))
    assert later.lacking(5, Marks()) is later


def test_a_store_lacks_skipped_minibatches_that_its_marks_do_not_have():
    marks = Marks.of([(1, 1, 3)])
    skipped = update(5, (1, 2), (2, 0), is_skipped=True)
    lacking = skipped.lacking(5, marks)
    assert [(m.task_id, m.index) for m in lacking.minibatches] == [(2, 0)]
    assert update(9, (1, 2), is_skipped=True).lacking(5, marks) is None


def test_an_update_that_is_kept_has_arrays_of_its_own():
    first = update(1, (1, 0))
    kept = first.kept()
    first.means[0][:] = 7
    assert kept.means[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_files_come_as_they_were_written_whatever_the_size_of_pieces(tmp_path, size):
    def write(folder):
        folder.mkdir()
        (folder / "a").write_bytes(b"12345")
        (folder / "b").write_bytes(b"")
        (folder / "c").write_bytes(bytes(range(50)))

    pieces = pieces_of(Giver(write), size)
    assert max(len(piece) for piece in pieces) <= size
    unpack(io.BytesIO(b"".join(pieces)), tmp_path)
    found = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert found == {"a": b"12345", "b": b"", "c": bytes(range(50))}


def test_nothing_is_given_before_it_is_written():
    may_write = threading.Event()

    def write(folder):
        assert may_write.wait(60)
        folder.mkdir()

    giver = Giver(write)
    assert giver.next_piece(100) == (b"", False)
    may_write.set()
    assert b"".join(pieces_of(giver, 100))[8:] == b"[]"


def test_what_cannot_be_written_is_said():
    def write(folder):
        raise CheckpointError("the disk is full")

    with pytest.raises(CheckpointError, match="the disk is full"):
        Giver(write).next_piece(100, waits=True)


def test_files_that_leave_their_folder_are_refused(tmp_path):
    words = json.dumps([["../a", 1]]).encode()
    with pytest.raises(CheckpointError, match=r"'\.\./a'"):
        unpack(io.BytesIO(len(words).to_bytes(8, "little") + words + b"1"), tmp_path)


def test_a_file_that_ends_early_is_refused(tmp_path):
    words = json.dumps([["a", 9]]).encode()
    with pytest.raises(CheckpointError, match="4 bytes of a, expected 9"):
        unpack(io.BytesIO(len(words).to_bytes(8, "little") + words + b"1234"), tmp_path)


def test_a_stage_says_why_it_cannot_load_what_was_given():
    def open_store(folder):
        raise CheckpointError("no manifest")

    stage = Stage(open_store, most_backlog=0)
    stage.take(b"\x02" + b"\0" * 7 + b"[]", is_last=True)
    stage.add(update(1, (1, 0)))  # more than may be kept, so the store is waited for
    with pytest.raises(CheckpointError, match="no manifest"):
        stage.caught_up()


def test_a_stage_without_all_pieces_has_not_caught_up():
    stage = Stage(lambda folder: pytest.fail("nothing is there to load"), most_backlog=0)
    stage.take(b"\x02", is_last=False)
    stage.add(update(1, (1, 0)))
    assert stage.caught_up() is None
    stage.abandon()
