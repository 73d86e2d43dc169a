"""What a terminal and a script see of a real job: `top`, `--quiet`, `--log_format=json`."""

import itertools
import json
import subprocess
import sys
from functools import partial

import pytest

from tests.elastic.seen_job import SeenJob

pytestmark = pytest.mark.timeout(300)

LASTING = {"num_epochs": 1_000}  # of jobs that are ended once they were looked at


def run(*words):
    command = [sys.executable, "-m", "elasticdl.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250)


@pytest.fixture(scope="module")
def lasting_job(tmp_path_factory):
    """A job of two workers that trains until the tests of it are over."""
    with SeenJob(tmp_path_factory.mktemp("seen"), 60_000, num_workers=2, **LASTING) as job:
        for role, index in itertools.product(("worker", "ps"), (0, 1)):
            of_it = partial(is_of, role, index)
            job.until_event("usage", also=of_it)  # so it has registered, and sent a heartbeat
        job.until_progress()
        yield job


def is_of(role, index, event):
    return (event["role"], event["index"]) == (role, index)


def test_top_shows_what_each_process_does(lasting_job):
    done = run("top", lasting_job.job_dir, "--once", "--seconds=0.5")
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.split()}
    for name in ("worker-0", "worker-1", "ps-0", "ps-1"):
        assert lines[name][1] == "alive", done.stdout
        assert "MB" in lines[name], done.stdout
    assert "%" in done.stdout


def test_profile_has_the_stages_of_each_worker_on_their_threads(lasting_job, tmp_path):
    path, num_steps = tmp_path / "trace.json", 20
    flags = (f"--steps={num_steps}", f"--output={path}", "--wait_seconds=200")
    done = run("profile", lasting_job.job_dir, *flags, "--explain")
    assert done.returncode == 0, done.stderr
    assert not list((lasting_job.job_dir / "profile").iterdir())
    assert "The job is bound by" in done.stdout or "not trained for long" in done.stdout
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(names.values()) == ["ps-0", "ps-1", "worker-0", "worker-1"]
    for pid in [pid for pid, name in names.items() if name.startswith("worker")]:
        spans = [e for e in events if e["ph"] == "X" and e["pid"] == pid]
        computed = [e for e in spans if e["name"] == "compute"]
        assert len(computed) == num_steps
        assert all(e["dur"] >= 0.9 * 4_000 for e in computed)  # each takes 4 ms: see `pace`
        assert all(e["args"]["minibatch"] >= 0 for e in computed)
        assert {"feed", "pull", "compute", "push"} <= {e["name"] for e in spans}
        # Of one thread a stage ends before the next one begins.
        ends = 0.0
        for event in sorted(computed, key=lambda e: e["ts"]):
            assert event["ts"] >= ends - 1.0
            ends = event["ts"] + event["dur"]
        assert len({e["tid"] for e in spans}) >= 2
    for pid in [pid for pid, name in names.items() if name.startswith("ps")]:
        spans = [e for e in events if e["ph"] == "X" and e["pid"] == pid]
        for asked in ("Pull", "Push"):
            of_steps = [e for e in spans if e["name"] == asked and "minibatch" in e["args"]]
            assert len(of_steps) >= num_steps  # of each worker, less those at the begin and the end
    # Arrows join a worker's stage with what a replica did for it: within it, of the same minibatch.
    at = {(e["pid"], e["tid"], e["ts"]): e for e in events if e["ph"] == "X"}
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) >= 4 * num_steps
    num_within = 0
    for ident, begin in begins.items():
        stage, work = (at[e["pid"], e["tid"], e["ts"]] for e in (begin, ends[ident]))
        assert {"task", "minibatch"} <= stage["args"].keys()
        assert stage["args"] == work["args"]
        assert stage["name"] == work["name"].lower()
        assert names[stage["pid"]].startswith("worker")
        assert names[work["pid"]].startswith("ps")
        slack = 2_000.0  # two clocks, and the begin of a thread that was asked
        begins_within = stage["ts"] - slack <= work["ts"]
        ends_within = work["ts"] + work["dur"] <= stage["ts"] + stage["dur"] + slack
        num_within += begins_within and ends_within
    # On a busy machine a process may be held between what it does and its look at the clock.
    assert num_within > 0.5 * len(begins)


# Each record is a seed of many ids, so a ps replica looks for rows all over its memory and applies
# Adam to them, while the worker has next to nothing to compute.
HEAVY = """
import numpy as np
from elasticdl import ArrayModel, ArrayOptimizer, ArrayTable


def forward():
    return ArrayModel(
        tables=[ArrayTable("rows", 32)],
        ids=lambda features: [features],
        predict=lambda dense, rows, features: rows[0][..., 0],
        gradients=lambda dense, rows, features, labels: (0.0, [rows[0]], {}),
    )


def feed(records, mode, metadata):
    made = np.random.default_rng(int(records[0])).integers(0, 1_000_000, (len(records), 1024))
    return made, np.zeros(len(records), np.float32)


def optimizer():
    params = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
    return ArrayOptimizer(learning_rate=0.001, kind="adam", params=params)
"""


@pytest.mark.long
def test_explain_names_the_ps_replica_of_a_job_that_it_bounds(seen_job, tmp_path):
    zoo = tmp_path / "heavy"
    zoo.mkdir()
    (zoo / "model.py").write_text(HEAVY)
    with seen_job(400_000, model_zoo=zoo, num_ps_pods=1, **LASTING) as job:
        job.until_progress(num_minibatches=300)
        path = tmp_path / "trace.json"
        flags = ("--steps=20", f"--output={path}", "--wait_seconds=200")
        done = run("profile", job.job_dir, *flags, "--explain")
        assert done.returncode == 0, done.stderr
    assert "The job is bound by ps replica: " in done.stdout
    assert "and ps-0 works for " in done.stdout


@pytest.mark.long
def test_job_that_is_quiet_says_nothing_and_once_it_has_ended_is_not_profiled(seen_job):
    job = seen_job(1_000)
    words = [f"--{name}={value}" for name, value in job.flags.items()]
    done = run("train", *words, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    profiled = run("profile", job.job_dir)
    assert profiled.returncode == 1
    assert "only a running job can be profiled" in profiled.stderr
    again = run("train", *words, "--quiet", "--log_format=json")
    assert again.returncode == 2
    assert "--quiet and --log_format=json: expected one of them" in again.stderr


def test_json_lines_tell_how_the_job_went(seen_job):
    job = seen_job(2_000)
    words = [f"--{name}={value}" for name, value in job.flags.items()]
    done = run("train", *words, "--log_format=json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["kind"] for line in lines} == {"data", "progress", "event", "end"}
    end = lines[-1]
    assert (end["kind"], end["status"], end["records_done"]) == ("end", "finished", 2_000)
    assert end["ledger"][0]["trained_once"] == 2_000
