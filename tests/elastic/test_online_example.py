"""`make online` in its shortest form: what it promises in its README."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.clusters.kafka.jars import missing

pytest.importorskip("confluent_kafka", reason="make lock installs it")
pytestmark = [
    pytest.mark.keras,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing() or "Kafka is here"),
]

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"hour +([\d.]+)  AUC ([\d.]+), trained once ([\d.]+) .* fresh after ([\d.]+) s")


def online(folder, **flags):
    """Return the words that run the example."""
    words = [sys.executable, str(ROOT / "examples" / "online" / "run.py"), f"--folder={folder}"]
    return words + [f"--{name}={value}" for name, value in flags.items()]


def left_over(folder):
    """Return the processes that work in a folder."""
    processes = psutil.process_iter(["cmdline"])
    return [p for p in processes if any(str(folder) in word for word in p.info["cmdline"] or [])]


def test_what_is_served_follows_the_clicks_and_each_is_trained_once(tmp_path):
    words = online(tmp_path / "online", minutes=0.6, rate=1000, hour=8)
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    num_sent, num_trained = re.findall(r"sent ([\d,]*\d), trained once ([\d,]*\d)", done.stdout)[0]
    assert num_sent == num_trained
    assert "repeated 0, lost 0" in done.stdout
    lines = [tuple(map(float, found)) for found in LINE.findall(done.stdout)]
    after = [line for line in lines if line[0] > 2]  # the fashion has changed twice
    assert len(after) >= 2, done.stdout
    followed, kept = (sum(line[n] for line in after) / len(after) for n in (1, 2))
    assert followed > kept + 0.03, done.stdout
    assert re.search(r"a served model that has it: [\d.]+ s \(p99 [\d.]+\)", done.stdout)
    assert (tmp_path / "online" / "online.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "online" / "online.html").read_text()
    assert page.count("<tr><td>") == len(lines)
    assert "<th>lag<th>half fresh after" in page
    assert "http-equiv" not in page  # it is over
    assert left_over(tmp_path) == []


def test_nothing_is_left_when_it_is_interrupted(tmp_path):
    words = online(tmp_path / "online", rate=500, hour=8)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            for line in process.stdout:
                if b"trains on the same clicks" in line:
                    break
            assert len(left_over(tmp_path)) >= 3  # the broker, a job, a server
        finally:
            process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 1
    assert left_over(tmp_path) == []
