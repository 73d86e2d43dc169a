"""Workers of one machine sit down at its devices, and a successor where a lost one was."""

import signal
import subprocess
import sys

import pytest

from elasticdl.worker.device_seat import take_seat

SIT = """
import sys
from pathlib import Path
from elasticdl.worker.device_seat import take_seat
seat = take_seat(["cuda:0", "cuda:1"], Path(sys.argv[1]))
print(seat.device, flush=True)
sys.stdin.read()
"""
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def sit(tmp_path):
    """Return a function that starts a process with a seat; returns it and its device."""
    started = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-c", SIT, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_devices_are_dealt_in_turn_and_a_successor_takes_the_seat_of_the_lost(sit):
    workers = [sit() for _ in range(3)]
    assert [device for _, device in workers] == ["cuda:0", "cuda:1", "cuda:0"]
    lost, device = workers[1]
    lost.send_signal(signal.SIGKILL)
    lost.wait()
    assert sit()[1] == device == "cuda:1"
    assert sit()[1] == "cuda:1"  # the fourth seat


def test_one_device_or_none_needs_no_seats(tmp_path):
    assert take_seat([], tmp_path).device is None
    assert take_seat(["cuda:1"], tmp_path).device == "cuda:1"
    assert take_seat(["cpu", "cpu"], tmp_path).device == "cpu"
    assert not list(tmp_path.iterdir())
