"""A job whose state is in etcd: master and etcd are killed again and again, and it stays exact."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elasticdl.observe.events import read_events

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4
FACTS_BETWEEN = 40

pytestmark = [pytest.mark.etcd, pytest.mark.long, pytest.mark.timeout(400)]


@contextlib.contextmanager
def chaos(faults, state, directory):
    """A job that is struck, and judged at its end."""
    flags = {"seed": 60, "faults": faults, "dir": directory, "state": state}
    with (directory / "chaos.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "scripts.chaos", *(f"--{n}={v}" for n, v in flags.items())],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def revision_of(client, prefix):
    from elasticdl.packages.etcd.client import rpc

    request = rpc.RangeRequest(key=f"{prefix}/current".encode())
    return client.call("Range", request).header.revision


def test_counts_stay_exact_while_master_and_etcd_are_killed(etcd_of_its_own, tmp_path):
    from elasticdl.packages.etcd.client import EtcdClient

    etcd, kills = etcd_of_its_own, 0
    state = f"etcd://{etcd.endpoint}/job"
    with (
        contextlib.closing(EtcdClient([etcd.endpoint], "test")) as client,
        chaos("master,worker,master,ps,master", state, tmp_path) as job,
    ):
        before = revision_of(client, "job")
        while job.poll() is None:
            now = revision_of(client, "job")
            if kills < KILLS and now >= before + FACTS_BETWEEN:
                etcd.kill()
                time.sleep(0.5 * kills)  # away for so long
                etcd.start()
                kills, before = kills + 1, now
            time.sleep(0.02)
    log = (tmp_path / "chaos.log").read_text()
    assert job.returncode == 0, log
    assert "every count is exact" in log
    assert kills == KILLS
    resumed = [e for e in read_events(tmp_path / "job") if e["event"] == "resumed"]
    assert resumed  # one that is killed again at once may not have come to say so
    assert not (tmp_path / "job" / "state.sqlite").exists()
