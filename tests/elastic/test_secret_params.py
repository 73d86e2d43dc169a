"""A whole job whose data needs a password: it reaches the readers, and lies nowhere else."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

PASSWORD = "swordfish-4711"
NUM_RECORDS = 400
PAGE = {"dashboard_port": 0} if importlib.util.find_spec("aiohttp") else {}
FLAGS = {"process_log_format": "json", **PAGE}

MODEL = f"""
import numpy as np
from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable


class Database:
    def __init__(self, password):
        if password != {PASSWORD[::-1]!r}[::-1]:
            raise RuntimeError("access denied")

    def create_shards(self):
        return {{"clicks": (0, {NUM_RECORDS})}}

    def read_records(self, task):
        for number in range(task.start, task.end):
            yield str(number)


def custom_data_reader(data_path, password):
    return Database(password)


def forward():
    return ArrayModel(
        tables=[ArrayTable("t", 1)],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=lambda dense, rows, features, labels: (0.0, [np.zeros_like(rows[0])], {{}}),
    )


def feed(records, mode, metadata):
    return np.array([int(record) for record in records]), np.zeros(len(records), np.float32)


def optimizer():
    return ArrayOptimizer(learning_rate=0.1)
"""


def train(
    folder: Path, params: str, flags: dict[str, object] | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    (folder / "zoo").mkdir(exist_ok=True)
    (folder / "zoo" / "model.py").write_text(MODEL)
    flags = {
        **(flags or {}),
        "model_zoo": folder / "zoo",
        "model_def": "model.forward",
        "training_data": "clicks",
        "data_reader_params": params,
        "distribution_strategy": "ParameterServerStrategy",
        "num_workers": 1,
        "minibatch_size": 20,
        "num_minibatches_per_task": 2,
        "job_dir": folder / "job",
        "summary": folder / "summary.json",
        "log_level": "DEBUG",
    }
    return subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", "train"]
        + [f"--{name}={value}" for name, value in flags.items()],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )


def places_of(password: str, folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in files if password.encode() in path.read_bytes())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Run a job with a page and JSON logs; return its folder and what its command printed."""
    folder = tmp_path_factory.mktemp("secret")
    done = train(folder, f"password={PASSWORD}", FLAGS)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


def test_a_password_is_in_the_settings_of_its_job_alone_and_only_its_owner_reads_them(trained):
    tmp_path, printed = trained
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "finished"
    assert places_of(PASSWORD, tmp_path) == ["job.json"]
    assert (tmp_path / "job" / "job.json").stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in printed

    # It is not told by a complaint either, and a wrong one is refused by the user's own reader.
    again = train(tmp_path, "password=other", FLAGS)
    assert again.returncode != 0
    assert '--data_reader_params was "password=***", is "password=***"' in again.stderr
    assert PASSWORD not in again.stdout + again.stderr


def test_a_password_of_the_environment_lies_in_no_file(tmp_path):
    done = train(tmp_path, "password=env:CLICKS_PASSWORD", CLICKS_PASSWORD=PASSWORD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert places_of(PASSWORD, tmp_path) == []
    assert PASSWORD not in done.stdout + done.stderr


def test_a_password_that_is_not_there_is_named_by_its_setting(tmp_path):
    done = train(tmp_path, "password=env:CLICKS_PASSWORD")
    assert done.returncode != 0
    assert "password=env:CLICKS_PASSWORD: this process has no such" in done.stdout + done.stderr


def test_the_secrets_of_a_job_are_logged_nowhere(trained):
    pytest.importorskip("aiohttp", reason="the page needs elasticdl-train[dashboard]")
    tmp_path, printed = trained
    job = tmp_path / "job"
    token = (job / "token").read_text()
    assert places_of(token, tmp_path) == ["token"]
    raw = bytes.fromhex(token)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files if raw in path.read_bytes()] == []
    assert token not in printed
    # The page's own token is printed for the user, and is in the file for its owner.
    page_token = json.loads((job / "page.json").read_text())["url"].partition("token=")[2]
    assert page_token in printed
    assert places_of(page_token, tmp_path) == ["page.json"]

    # The logs are lines of JSON; what a message was given is in fields of their own.
    master = [json.loads(line) for line in (job / "logs" / "master.log").read_text().splitlines()]
    assert {line["process"] for line in master} == {"master"}
    assert "worker-0" in {line.get("started") for line in master}
