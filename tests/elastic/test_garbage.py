"""Strangers throw garbage at every port of a running job; it goes on, and counts exactly."""

import contextlib
import random
import socket

import psutil
import pytest

from tests.elastic.counting_job import CountingJob

ROUNDS = 150
MAX_GROWTH_BYTES = 64 * 1024 * 1024

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def listeners(processes):
    """Return (process, port) of each TCP port that one of some processes listens at."""
    return [
        (process, connection.laddr.port)
        for process in processes
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


def throw(rng, port):
    """Send something that no peer of the job would send; it may be cut off at any point."""
    payloads = (
        rng.randbytes(rng.randrange(1, 5000)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(200),
        b"EDL" + rng.randbytes(2000),
        bytes(4096),
        b"\xff" * 4096,
    )
    with (
        contextlib.suppress(OSError),  # it may hang up at any moment
        socket.create_connection(("127.0.0.1", port), timeout=30) as stranger,
    ):
        stranger.sendall(rng.choice(payloads))
        if rng.random() < 0.3:
            stranger.shutdown(socket.SHUT_WR)
            stranger.recv(4096)


def test_garbage_at_every_port_harms_nothing(tmp_path):
    hurry = tmp_path / "hurry"
    tempo = {"model_def": "counting.staged.forward", "model_params": f"seconds=0.05;hurry={hurry}"}
    with CountingJob(tmp_path, seed=5, **tempo) as job:  # it lasts until all is thrown
        pictures = job.statuses()
        next(status for status in pictures if status.records_done > 0)
        targets = listeners([*job.processes("master"), *job.processes("ps")])
        before = {process.pid: process.memory_info().rss for process, _ in targets}
        assert len(before) == 3  # the master and two ps replicas

        rng = random.Random(0)
        for _ in range(ROUNDS):
            throw(rng, rng.choice(targets)[1])

        for process, _ in targets:
            assert process.is_running()
            assert process.memory_info().rss < before[process.pid] + MAX_GROWTH_BYTES
        hurry.touch()
        summary = job.finish()
    job.check_counts(summary)
    for log in (job.job_dir / "logs").glob("ps-*.log"):
        assert "127.0.0.1" in log.read_text()
        assert "panicked" not in log.read_text()
