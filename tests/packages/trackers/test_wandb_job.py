"""A job as a run of Weights & Biases, in files: its master is killed, it is stopped and goes on."""

import contextlib
import json
import signal
import struct
import sys
import threading
from pathlib import Path

import pytest

from tests.elastic.counting_job import CountingJob
from tests.elastic.running_job import run
from tests.packages.trackers.wandb_server import Server

pytest.importorskip("wandb.proto", reason="pip install wandb")

from wandb.proto.wandb_internal_pb2 import Record

KEY = "0123456789" * 4


@pytest.fixture
def server():
    with Server() as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def records(path):
    """Yield what is in the file of a run: LevelDB's log format after seven bytes."""
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        length, part = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # all of it, or its end
            yield Record.FromString(whole)
            whole = b""


def history(found):
    """Return step -> numbers by name."""
    rows = [
        {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row}
        for row in (each.history.item for each in found if each.HasField("history"))
    ]
    return {row["_step"]: row for row in rows}


def parts_of(job):
    """Return the records of the files of the job's run, one file for each master."""
    return [list(records(path)) for path in sorted(job.job_dir.glob("wandb/offline-*/*.wandb"))]


def services():
    """Return whose services of the library run on this machine, by process ids."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"wandb-core"):
                found.append(int(words[words.index(b"--pid") + 1]))
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_server_has_one_run_of_a_job_whose_master_was_killed(tmp_path, monkeypatch, server):
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    flags = {"wandb_project": "clicks", "model_def": "counting.staged.forward"}
    with CountingJob(tmp_path, seed=7, model_params="seconds=0.01", **flags) as job:
        job.until_trained(1_000, lambda: any(one.rows for one in server.runs.values()))
        job.send("master")
        summary = job.finish()
    job.check_counts(summary)
    (found,) = server.runs.values()
    steps = [row["_step"] for row in found.rows]
    assert steps == sorted(set(steps))
    assert max(steps) == summary["model_version"]
    assert found.config["minibatch_size"]["value"] == "16"
    assert (found.num_begun, found.num_preempted, found.exit_code) == (2, 0, 0)
    (artifact,) = server.artifacts
    assert artifact["artifactTypeName"] == "model"
    assert server.unknown == set()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_is_one_run_over_restarts_of_its_master_and_of_itself(tmp_path, monkeypatch, server):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    flags = {"wandb_project": "clicks", "model_def": "counting.staged.forward"}
    flags |= {"model_params": "seconds=0.01", "checkpoint_steps": 50}
    flags["checkpoint_dir"] = tmp_path / "checkpoints"
    masters = []
    with CountingJob(tmp_path, seed=7, **flags) as job:
        job.until_trained(1_000, lambda: any(map(history, parts_of(job))))
        masters += [process.pid for process in job.processes("master")]
        job.send("master")
        job.until_trained(6_000, lambda: len(parts_of(job)) == 2)
        masters += [process.pid for process in job.processes("master")]
        job.send("master", number=signal.SIGTERM)  # another one can go on
        job.process.wait()
    with CountingJob(tmp_path, seed=7, **flags) as job:
        summary = job.finish()
        while set(services()) & set(masters):  # of the one that was killed it is gone as well
            continue
    job.check_counts(summary)
    killed, paused, finished = parts = parts_of(job)
    heads = [next(each.run for each in part if each.HasField("run")) for part in parts]
    assert len({head.run_id for head in heads}) == 1
    for head in heads:
        assert head.project == "clicks"
        config = {each.key: each.value_json for each in head.config.update}
        assert config["minibatch_size"] == '"16"'
    assert not any(each.HasField("exit") for each in killed)
    assert any(each.HasField("preempting") for each in paused)
    ends = [each.exit.exit_code for each in (*paused, *finished) if each.HasField("exit")]
    assert ends == [1, 0]
    (artifact,) = (each.artifact for each in finished if each.HasField("artifact"))
    written = {
        str(path.relative_to(tmp_path / "export")) for path in (tmp_path / "export").rglob("*")
    }
    assert {each.path for each in artifact.manifest.contents} == written
    steps = {step: row for part in parts for step, row in history(part).items()}
    assert len(steps) > 3
    assert steps[max(steps)]["throughput/records_per_second"] > 0
    assert max(steps) == summary["model_version"]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    for folder in sorted(job.job_dir.glob("wandb/offline-*")):
        run([sys.executable, "-m", "wandb", "sync", str(folder)], cwd=tmp_path)
    (sent,) = server.runs.values()
    steps = [row["_step"] for row in sent.rows]
    assert steps == sorted(set(steps))  # one that is behind, for a checkpoint, comes after the last
    assert len(steps) == sum(len(history(part)) for part in parts)
    assert max(steps) == summary["model_version"]
    assert sent.exit_code == 0
    files = [path for path in job.job_dir.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
