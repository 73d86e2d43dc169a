"""A job as a run of a real MLflow server: its master is killed, it is stopped and goes on."""

import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.clusters.etcd import free_ports
from tests.elastic.counting_job import CountingJob

pytest.importorskip("mlflow.server", reason="pip install mlflow")

from mlflow.tracking import MlflowClient


@pytest.fixture
def server(tmp_path):
    (free_port,) = free_ports("127.0.0.1")  # the server takes no port of the system's choice
    command = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={free_port}"]
    command += [f"--backend-store-uri=sqlite:///{tmp_path}/mlflow.db", "--workers=1"]
    command += [f"--artifacts-destination={tmp_path}/artifacts"]
    uri = f"http://127.0.0.1:{free_port}"
    log = (tmp_path / "mlflow.log").open("w")
    process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)
    try:
        while True:
            assert process.poll() is None, (tmp_path / "mlflow.log").read_text()
            try:
                with urllib.request.urlopen(f"{uri}/health", timeout=1):
                    break
            except OSError:
                continue
        yield uri
    finally:
        process.terminate()
        process.wait()
        log.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_is_one_run_over_restarts_of_its_master_and_of_itself(tmp_path, server):
    flags = {"mlflow_uri": server, "model_def": "counting.staged.forward"}
    flags |= {"model_params": "seconds=0.01", "checkpoint_steps": 50}
    flags["checkpoint_dir"] = tmp_path / "checkpoints"
    with CountingJob(tmp_path, seed=7, **flags) as job:
        job.until_trained(2_000)
        job.send("master")
        job.until_trained(6_000)
        job.send("master", number=signal.SIGTERM)  # another one can go on
        job.process.wait()
    with CountingJob(tmp_path, seed=7, **flags) as job:
        summary = job.finish()
    job.check_counts(summary)
    client = MlflowClient(tracking_uri=server)
    (experiment,) = (e for e in client.search_experiments() if e.name == "elasticdl")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["minibatch_size"] == "16"
    history = client.get_metric_history(found.info.run_id, "throughput/records_per_second")
    assert len({metric.step for metric in history}) > 3
    assert max(metric.step for metric in history) == summary["model_version"]
    assert [each.path for each in client.list_artifacts(found.info.run_id)] == ["model"]
