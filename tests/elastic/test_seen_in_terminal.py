"""What a terminal and a script see of a real job: `top`, `--quiet`, `--log_format=json`."""

import json
import subprocess
import sys

from elasticdl.observe.events import read_events


def run(*words):
    command = [sys.executable, "-m", "elasticdl.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def until_trained(job):
    while not any(
        event["event"] == "progress" and event["num_records"] > 0
        for event in read_events(job.job_dir)
    ):
        assert job.process.poll() is None, job.log()


def test_top_shows_what_each_process_does(seen_job):
    with seen_job(60_000, num_workers=2) as job:
        until_trained(job)
        done = run("top", job.job_dir, "--once", "--seconds=0.5")
        assert done.returncode == 0, done.stderr
        lines = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.split()}
        for name in ("worker-0", "worker-1", "ps-0", "ps-1"):
            assert lines[name][1] == "alive", done.stdout
            assert "MB" in lines[name], done.stdout
        assert "%" in done.stdout


def test_job_that_is_quiet_says_nothing(seen_job):
    words = [f"--{name}={value}" for name, value in seen_job(1_000).flags.items()]
    done = run("train", *words, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    again = run("train", *words, "--quiet", "--log_format=json")
    assert again.returncode == 2
    assert "--quiet and --log_format=json: expected one of them" in again.stderr


def test_json_lines_tell_how_the_job_went(seen_job):
    job = seen_job(2_000)
    words = [f"--{name}={value}" for name, value in job.flags.items()]
    done = run("train", *words, "--log_format=json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["kind"] for line in lines} == {"progress", "event", "end"}
    end = lines[-1]
    assert (end["kind"], end["status"], end["records_done"]) == ("end", "finished", 2_000)
    assert end["ledger"][0]["trained_once"] == 2_000
