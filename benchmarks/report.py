"""Shared by all benchmarks: runs both sides in turn, finds best and median, writes one file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
FILE_WIDTH = 140  # columns of a table that goes to a file and not to a terminal
PACKAGES = ("elasticdl", "numpy", "grpcio", "tensorflow-cpu", "keras")


@dataclass(frozen=True, slots=True)
class Side:
    """All that was measured of one side: `runs` are in the order in which they were made."""

    runs: tuple[float, ...]
    higher_is_better: bool = True

    @property
    def best(self) -> float:
        """The run least disturbed by neighbours."""
        return max(self.runs) if self.higher_is_better else min(self.runs)

    @property
    def median(self) -> float:
        """The middle run."""
        return statistics.median(self.runs)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a report: ours against the peer's in the same session.

    ours, peer: The best run of each, in `unit`; peer is None if there is no peer.
    ratio: The advantage of ours by the best runs; above 1 ours is better.
    best, median, runs: `{"ours": ..., "peer": ...}`, to show the spread.
    """

    what: str
    ours: float
    peer: float | None
    unit: str
    ratio: float | None
    best: dict[str, float]
    median: dict[str, float]
    runs: dict[str, list[float]]


def asked_for_short(doc: str | None) -> bool:
    """Read the command line of a benchmark that has no other option than `--short`.

    Args:
        doc: The docstring of the benchmark's module.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="few runs of each, not kept")
    return bool(parser.parse_args().short)


def compare(what: str, unit: str, ours: Side, peer: Side | None = None) -> Row:
    """Make a row of what was measured of both sides."""
    sides = {"ours": ours} if peer is None else {"ours": ours, "peer": peer}
    return Row(
        what=what,
        ours=ours.best,
        peer=None if peer is None else peer.best,
        unit=unit,
        ratio=None if peer is None else _ratio(ours, peer),
        best={name: side.best for name, side in sides.items()},
        median={name: side.median for name, side in sides.items()},
        runs={name: list(side.runs) for name, side in sides.items()},
    )


def interleave(
    sides: Mapping[str, Callable[[], float]], runs: int, higher_is_better: bool = True
) -> dict[str, Side]:
    """Run each side once, then each again, and so on, so that a disturbance meets all of them.

    Each callable makes one run and returns its figure. The order is turned round every second
    time, so that nobody always runs after the same neighbour.
    """
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(runs):
        names = list(sides)
        for name in names if number % 2 == 0 else reversed(names):
            figure = sides[name]()
            measured[name].append(figure)
            print(f"  run {number + 1}/{runs} {name}: {figure:,.1f}", file=sys.stderr, flush=True)
    return {name: Side(tuple(figures), higher_is_better) for name, figures in measured.items()}


def write_results(
    name: str,
    rows: Sequence[Row],
    notes: Mapping[str, object] | None = None,
    keep: bool = True,
) -> Path:
    """Print the rows as a table and write them to `benchmarks/results/NAME.json`.

    Args:
        name: The name of the file and of the table, such as `flights`.
        rows: Rows from `compare`.
        notes: Other facts for a reader: sizes, settings, the rest of the time.
        keep: Write to `results/`; else, after a short run, to the system's temporary folder.
    """
    here = machine()
    document = {
        "name": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": here,
        "versions": versions(),
        "notes": dict(notes or {}),
        "rows": [asdict(row) for row in rows],
    }
    folder = RESULTS if keep else Path(tempfile.gettempdir(), "short-benchmarks")
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    console.print(table(name, rows))
    print(", ".join(f"{what} {found}" for what, found in here.items()))
    print(f"written to {path}")
    return path


def table(title: str, rows: Iterable[Row]) -> Table:
    """Lay the rows out with both sides next to each other."""
    grid = Table(title=title)
    grid.add_column("what")
    for column in ("ours", "peer", "ratio", "median: ours", "peer"):
        grid.add_column(column, justify="right")
    grid.add_column("unit")
    for row in rows:
        grid.add_row(
            row.what,
            _figure(row.ours),
            _figure(row.peer),
            "" if row.ratio is None else f"{row.ratio:.2f}x",
            _figure(row.median["ours"]),
            _figure(row.median.get("peer")),
            row.unit,
        )
    return grid


def machine() -> dict[str, object]:
    """Describe what the numbers hold for: processor, cores that may be used, load, memory."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": platform.platform(),
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Name the versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _ratio(ours: Side, peer: Side) -> float:
    if ours.higher_is_better:
        return ours.best / peer.best
    return peer.best / ours.best


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
