"""The page of a job with a thousand members, open in a real browser.

The master is that of `members.py`, with `--dashboard_port`; the members are played. Measured in the
steady state, without a page (the peer) and with one that Chromium shows: processor seconds and
memory of the master, how long its event loop was held, the longest tasks of the browser's main
thread (by Chromium's own trace), and the bytes of `/metrics`. Limits: half a core, 500 MB, 1 MB.

    python benchmarks/page.py [--short]
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))
from members import _SERVER, Crowd, Load, Size, _address
from playwright.async_api import async_playwright
from report import Side, asked_for_short, compare, write_results

FULL = Size(num_members=1_000, num_tasks=1_000_000, seconds=60.0, runs=1)
SHORT = Size(num_members=200, num_tasks=100_000, seconds=8.0, runs=1)
TRACE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What the browser and Prometheus got.

    paint_seconds: from the address to the first picture of the lanes. longest_ms: task of the main
    thread, once the page is there. busy: share of that thread's time.
    """

    paint_seconds: float
    longest_ms: float
    busy: float
    metrics_bytes: int
    num_lanes: int


def main() -> None:
    """Measure and write `benchmarks/results/page.json`."""
    is_short = asked_for_short(__doc__)
    size = SHORT if is_short else FULL
    without, _ = run(size, has_page=False)
    load, seen = run(size, has_page=True)
    print(without, load, seen, sep="\n", file=sys.stderr)
    assert seen is not None
    assert seen.num_lanes >= size.num_members
    title = f"{size.num_members:,} members"

    def both(what: str, unit: str, name: str, factor: float) -> Any:
        sides = [
            Side((factor * getattr(one, name),), higher_is_better=False) for one in (load, without)
        ]
        return compare(f"{title}: {what}, with the page open and without", unit, *sides)

    def one(what: str, unit: str, value: float) -> Any:
        return compare(f"{title}: {what}", unit, Side((value,), higher_is_better=False))

    rows = [
        both("processor of the master", "% of a core", "cores", 100.0),
        both("memory of the master", "MB", "megabytes", 1.0),
        both("the event loop was held, at most", "ms", "held_ms", 1.0),
        one("first picture", "s", seen.paint_seconds),
        one("longest task of the browser's main thread", "ms", seen.longest_ms),
        one("the browser's main thread was busy", "%", 100 * seen.busy),
        one("/metrics", "kB", seen.metrics_bytes / 1e3),
    ]
    limits = {"% of a core": 50, "MB": 500, "/metrics, kB": 1_000}
    write_results("page", rows, {"limits": limits}, keep=not is_short)


def run(size: Size, has_page: bool) -> tuple[Load, Seen | None]:
    """Run the master and its members once, perhaps with a page that is open."""
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        command = [sys.executable, str(_SERVER), folder, str(size.num_members), str(size.num_tasks)]
        server = subprocess.Popen([*command, "page"] if has_page else command)
        try:
            address = _address(Path(folder), server)
            return asyncio.run(_both(address, server.pid, Path(folder), size, has_page))
        finally:
            server.kill()
            server.wait()


async def _both(
    address: str, pid: int, folder: Path, size: Size, has_page: bool
) -> tuple[Load, Seen | None]:
    crowd = Crowd(address, pid, folder, size)
    looking = asyncio.ensure_future(_look(folder, crowd)) if has_page else None
    load = await crowd.run()
    return load, None if looking is None else await looking


async def _look(folder: Path, crowd: Crowd) -> Seen:
    """Open the page when all members are there, and keep it open."""
    while not crowd.is_steady:
        await asyncio.sleep(0.1)
    page = json.loads((folder / "page.json").read_text())
    async with async_playwright() as started:
        browser = await started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        tab = await browser.new_page(viewport={"width": 1200, "height": 900})
        began = time.perf_counter()
        await tab.goto(page["url"])
        await tab.wait_for_selector("#lanes canvas")
        paint_seconds = time.perf_counter() - began
        await browser.start_tracing(page=tab, categories=["devtools.timeline", "toplevel"])
        await asyncio.sleep(min(TRACE_SECONDS, crowd.seconds / 2))
        trace = json.loads(await browser.stop_tracing())
        num_lanes = await tab.evaluate("store.lanes.size")
        request = urllib.request.Request(page["address"] + "/metrics")
        request.add_header("Authorization", f"Bearer {page['url'].partition('token=')[2]}")
        metrics = await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())
        await browser.close()
    longest, busy = _main_thread(trace["traceEvents"])
    return Seen(paint_seconds, longest, busy, len(metrics), num_lanes)


def _main_thread(events: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the longest task of the page's main thread, ms, and the share of time it was busy."""
    names = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        event
        for event in events
        if event["name"].endswith("RunTask")
        and event.get("ph") == "X"
        and (event["pid"], event["tid"]) in names
    ]
    if not tasks:
        raise SystemExit("expected tasks of the main thread in Chromium's trace, found none")
    began = min(event["ts"] for event in tasks)
    ended = max(event["ts"] + event.get("dur", 0) for event in tasks)
    durations = [event.get("dur", 0) for event in tasks]
    return max(durations) / 1e3, sum(durations) / max(1, ended - began)


if __name__ == "__main__":
    main()
