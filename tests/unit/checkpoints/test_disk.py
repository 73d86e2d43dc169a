"""A disk that hangs holds nobody up for ever. A FIFO that nobody reads stands for it."""

import os
import threading

import pytest

from elasticdl.checkpoints.disk import Disk
from elasticdl.errors import CheckpointError

SOON = 0.5  # what is ready has its turn within it, on a busy machine too
LATER = 60.0


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    yield path
    os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # lets go of whoever still waits


def hang(fifo):
    os.close(os.open(fifo, os.O_WRONLY))


def answer(fifo):
    os.close(os.open(fifo, os.O_RDONLY))
    for thread in threading.enumerate():
        if thread.name == "disk":
            thread.join(LATER)


def test_work_on_a_disk_that_answers_is_done():
    assert Disk(LATER).do("a file", lambda: 7) == 7


def test_an_error_of_the_work_is_raised():
    def fail():
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        Disk(LATER).do("a file", fail)


def test_a_disk_that_hangs_is_given_up_and_named(fifo):
    disk = Disk(SOON)

    with pytest.raises(CheckpointError, match=r"version-7: the disk has not answered for 0\.5 s"):
        disk.do("version-7", lambda: hang(fifo))


def test_while_a_disk_hangs_nothing_else_is_tried_and_then_it_is(fifo):
    disk = Disk(SOON)
    with pytest.raises(CheckpointError):
        disk.do("version-7", lambda: hang(fifo))

    with pytest.raises(CheckpointError, match="version-8: nothing is tried"):
        disk.do("version-8", lambda: 8)
    answer(fifo)

    assert disk.do("version-8", lambda: 8) == 8


def test_what_somebody_else_takes_is_not_counted():
    disk = Disk(SOON)
    never = threading.Event()

    def work():
        with disk.elsewhere():
            never.wait(2 * SOON)
        return 9

    assert disk.do("version-9", work) == 9


def test_work_that_was_given_up_goes_no_further(fifo):
    disk = Disk(SOON)
    went_on = []

    def work():
        hang(fifo)
        with disk.elsewhere():
            went_on.append("asked the replicas")

    with pytest.raises(CheckpointError):
        disk.do("version-7", work)
    answer(fifo)

    assert went_on == []


def test_the_end_of_the_process_waits_for_no_disk(fifo):
    disk = Disk(LATER)
    began, failed = threading.Event(), []

    def work():
        began.set()
        hang(fifo)

    def do():
        try:
            disk.do("version-7", work)
        except CheckpointError as error:
            failed.append(error)

    waiting = threading.Thread(target=do)
    waiting.start()
    began.wait(LATER)
    disk.close()
    waiting.join(LATER)

    assert len(failed) == 1
