"""Two masters at once on the state of one job: the older one ends, and leaves the processes alone.

The newer one is on another port here, where no process looks for it; on a cluster both have one
name.
"""

import json
import os
import re
import signal
import subprocess
import time

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.job import Role
from elasticdl.launchers.process import folder
from elasticdl.observe.events import read_events
from elasticdl.rpc.client import JobClient
from elasticdl.runtime import process
from elasticdl.runtime.credentials import job as credentials
from elasticdl.runtime.process import LIFELINE_VARIABLE

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(240)]

NUM_EPOCHS = 6
LOOK_SECONDS = 0.05


class Masters:
    """Masters of one job, each started by hand, as two machines would."""

    def __init__(self, config, job_dir):
        self.config = config
        self.job_dir = job_dir
        self.token = process.read_token(job_dir / process.TOKEN_FILE)
        self.started = []

    def start(self, name):
        """Start one more; its log is a file of its own."""
        log = self.job_dir / f"{name}.log"
        environment = {k: v for k, v in os.environ.items() if k != LIFELINE_VARIABLE}
        with log.open("w") as file:
            master = subprocess.Popen(
                process.command(Role.MASTER, 0, self.job_dir, tls_dir=self.job_dir / "tls"),
                stdout=file,
                stderr=file,
                env=environment,
                start_new_session=True,
            )
        self.started.append(master)
        return master, log

    def address(self):
        """Where the newest of them listens; "" before that."""
        path = self.job_dir / process.ADDRESS_FILE
        return json.loads(path.read_text())["address"] if path.exists() else ""

    def until(self, holds, what):
        """Return when something holds; none of the masters that are to live may have ended."""
        while not holds():
            assert self.started[-1].poll() is None, f"{what}: {self.logs()}"
            time.sleep(LOOK_SECONDS)

    def logs(self):
        return "\n".join(path.read_text() for path in self.job_dir.glob("*.log"))

    def end_all(self, chaos):
        for master in self.started:
            master.kill()  # one that is suspended too
            master.wait()
        for role in ("worker", "ps"):
            for found in chaos.processes(self.job_dir, role):
                found.kill()


@pytest.fixture
def masters(etcd_of_its_own, chaos, tmp_path):
    chaos.write_data(tmp_path / "data", chaos.make_ids(5))
    words = {
        "model_zoo": chaos.ROOT / "model_zoo",
        "model_def": "counting.model.forward",
        "training_data": tmp_path / "data",
        "distribution_strategy": "ParameterServerStrategy",
        "num_workers": 2,
        "num_ps_pods": 2,
        "num_epochs": NUM_EPOCHS,
        "minibatch_size": chaos.MINIBATCH_SIZE,
        "num_minibatches_per_task": chaos.MINIBATCHES_PER_TASK,
        "heartbeat_seconds": 0.2,
        "heartbeat_timeout_seconds": 200,  # the newer one hears nobody, and is to miss nobody
        "output": tmp_path / "export",
        "job_dir": tmp_path / "job",
        "state": f"etcd://{etcd_of_its_own.endpoint}/job",
    }
    config = build_config("train", {name: str(value) for name, value in words.items()})
    found = Masters(config, folder.prepare(config))
    yield found
    found.end_all(chaos)


def records_done(masters):
    if not masters.address():
        return 0
    cluster = masters.config.cluster
    tls = credentials.for_user(cluster, credentials.folder_of(cluster, masters.job_dir))
    client = JobClient(masters.address(), masters.token, tls=tls)
    try:
        return client.status(give_up_seconds=60.0).records_done
    finally:
        client.close()


@pytest.mark.long
def test_a_master_that_was_away_is_fenced_by_another(masters, chaos):
    older, its_log = masters.start("older")
    masters.until(lambda: records_done(masters) > 10_000, "training")
    before = masters.address()
    workers = {found.pid for found in chaos.processes(masters.job_dir, "worker")}
    assert workers

    older.send_signal(signal.SIGSTOP)
    newer, its_successors_log = masters.start("newer")
    masters.until(lambda: masters.address() != before, "another master")
    assert older.poll() is None  # two masters at once
    older.send_signal(signal.SIGCONT)

    assert older.wait(timeout=150) == 1, its_log.read_text()
    words = its_log.read_text()
    assert re.search("TakenOverError: .*another master .*has taken over the job", words), words
    assert newer.poll() is None, its_successors_log.read_text()
    assert workers <= {found.pid for found in chaos.processes(masters.job_dir, "worker")}
    (resumed,) = [event for event in read_events(masters.job_dir) if event["event"] == "resumed"]
    assert resumed["role"] == "master"
