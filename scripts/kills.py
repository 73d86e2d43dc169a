"""Draws docs/pictures/kills.svg: a job whose processes are killed.

python scripts/kills.py DATA          # of flights, as `make demo` makes it (demo/data)
python scripts/kills.py --job=JOB     # of a job that has ended, by its events
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from elasticdl.packages.simulate.picture import box, line, svg, text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "kills.svg"
KILLS = ((0.2, "worker"), (0.4, "ps"), (0.6, "master"), (0.85, "worker"))  # share of the records
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 260, 64, 56, 226
BLUE, RED, GREY = "#2563ab", "#c0392b", "#d4d8dd"


def main() -> None:
    """Draw the given job, or run a job and draw it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--job", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job_dir = arguments.job or _run(arguments.data, Path(folder) / "job")
        ledger = json.loads((job_dir / "status.json").read_text())["ledger"]
        assert all(epoch["trained_once"] == epoch["records"] for epoch in ledger), ledger
        PICTURE.write_text(draw(list(events(job_dir))))


def _run(data: Path, job_dir: Path) -> Path:
    flags = {
        "model_zoo": ROOT / "model_zoo",
        "model_def": "flights.deepfm.forward",
        "training_data": data / "train",
        "distribution_strategy": "ParameterServerStrategy",
        "num_workers": 2,
        "num_ps_pods": 2,
        "minibatch_size": 512,
        "num_epochs": 20,
        "job_dir": job_dir,
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    job = subprocess.Popen([sys.executable, "-m", "elasticdl.cli.main", "train", *words])
    for share, role in KILLS:
        while job.poll() is None and _share_done(job_dir) < share:
            time.sleep(0.2)
        _processes(role, job_dir)[0].kill()
    assert job.wait() == 0
    return job_dir


def _share_done(job_dir: Path) -> float:
    pictures = [event for event in events(job_dir) if event["event"] == "picture"]
    return pictures[-1]["records_done"] / pictures[-1]["records_total"] if pictures else 0.0


def _processes(role: str, job_dir: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"elasticdl.{role}" in (words := process.info["cmdline"] or [])
        and any(str(job_dir) in word for word in words)
    ]


def events(job_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of the master of a job and of its supervisor, in order of time."""
    files = [*job_dir.glob("events/master-*.jsonl"), *job_dir.glob("events/supervisor-*.jsonl")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    yield from sorted(map(json.loads, lines), key=lambda event: event["time"])


def draw(noted: list[dict[str, Any]]) -> str:
    """Return the picture of a job: records trained so far, and each loss of a process."""
    pictures = [event for event in noted if event["event"] == "picture"]
    total = pictures[-1]["records_total"]
    begin, seconds = pictures[0]["time"], pictures[-1]["time"] - pictures[0]["time"]

    def x(second: float) -> float:
        return LEFT + second / float(seconds) * (WIDTH - LEFT - 16)

    def y(records: float) -> float:
        return BOTTOM - records / float(total) * (BOTTOM - TOP)

    epochs = pictures[-1]["num_epochs"]
    words = f"{total:,} records in {epochs} epochs; each was trained exactly once in every epoch"
    parts = [text(LEFT, 18, words, is_bold=True)]
    for records in range(0, total + 1, 1_000_000):
        parts += [line(LEFT, y(records), WIDTH - 16, y(records), GREY)]
        parts += [text(8, y(records) + 4, f"{records // 1_000_000} million" if records else "0")]
    parts += [text(round(x(at)), BOTTOM + 18, f"{at} s") for at in range(0, int(seconds), 20)]
    points = ((event["time"] - begin, event["records_done"]) for event in pictures)
    curve = " ".join(f"{x(at):.1f},{y(records):.1f}" for at, records in points)
    parts += [f'<polyline points="{curve}" fill="none" stroke="{BLUE}" stroke-width="2"/>']
    losses = (event for event in noted if event["event"] in ("lost", "master lost"))
    for number, event in enumerate(losses):
        at, top = x(event["time"] - begin), TOP - 16 * (number % 2)  # so that words do not meet
        parts += [box(at - 1, top, 2, BOTTOM - top, RED)]
        parts += [text(round(at) - 30, top - 4, f"kill -9 {event.get('process', 'master')}")]
    return svg(parts, WIDTH, HEIGHT)


if __name__ == "__main__":
    main()
