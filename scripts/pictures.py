"""Takes the pictures of the page in docs/pictures, of a real job with a killed worker.

    python scripts/pictures.py DATA    # of flights, as `make demo` makes it (demo/data)

Needs Chromium (scripts/browser.sh) and Playwright.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import psutil
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
WIDE = {"width": 1200, "height": 1500}
PHONE = {"width": 390, "height": 844}


def main() -> None:
    """Run the job, kill a worker, and take the pictures while it goes on."""
    data = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        job_dir = Path(folder) / "job"
        command = [sys.executable, "-m", "elasticdl.cli.main", "train"]
        flags = {
            "model_zoo": ROOT / "model_zoo",
            "model_def": "flights.deepfm.forward",
            "job_name": "flights",
            "training_data": data / "train",
            "validation_data": data / "validation",
            "distribution_strategy": "ParameterServerStrategy",
            "num_workers": 2,
            "num_ps_pods": 2,
            "minibatch_size": 512,
            "num_epochs": 40,
            "evaluation_steps": 2_000,
            "checkpoint_steps": 2_500,
            "checkpoint_dir": Path(folder) / "checkpoints",
            "job_dir": job_dir,
            "dashboard_port": 0,
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        log = Path(folder) / "log"
        with log.open("w") as file:
            job = subprocess.Popen([*command, *words], stdout=file, stderr=subprocess.STDOUT)
        try:
            _take(job, log, job_dir)
        finally:
            job.terminate()
            job.wait()


def _take(job: subprocess.Popen[bytes], log: Path, job_dir: Path) -> None:
    url = _until(lambda: re.search(r"the job's page is at (\S+)", log.read_text()), job)[1]
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, scheme, size in (
            ("page-light", "light", WIDE),
            ("page-dark", "dark", WIDE),
            ("page-phone", "light", PHONE),
        ):
            context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1)
            tab = context.new_page()
            tab.goto(url)
            if name == "page-light":
                _until(partial(_has_trained, tab, 400_000), job)
                _workers(job_dir)[0].kill()
                _until(partial(_has_trained, tab, 1_800_000), job)
            _until(partial(tab.evaluate, "store.dips.length > 0"), job)
            tab.wait_for_timeout(1_500)
            tab.screenshot(path=PICTURES / f"{name}.png")
            if size is WIDE:
                lanes = tab.locator("section[aria-labelledby=h-lanes]")
                lanes.screenshot(path=PICTURES / f"{name.replace('page', 'lanes')}.png")
            context.close()
        browser.close()


def _has_trained(tab: Page, num_records: int) -> bool:
    return int(tab.evaluate("store.picture.records_done || 0")) > num_records


def _workers(job_dir: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if "elasticdl.worker" in (process.info["cmdline"] or [])
        and any(str(job_dir) in word for word in process.info["cmdline"])
    ]


def _until(condition, job, seconds=300.0):  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert job.poll() is None, "the job has ended too early"
        assert time.monotonic() < deadline, condition
        time.sleep(0.1)
    return found


if __name__ == "__main__":
    main()
