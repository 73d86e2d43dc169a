"""As many simulated jobs as there is time for: `python -m tests.simulation.many --seeds=100000`."""

import gc
import hashlib
import json
import logging
import multiprocessing
import os
import platform
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.progress import Progress

from tests.simulation.faults import PROCESS_FAULTS, Many, drawn, folder_in_memory, kind_of

AT_ONCE = 250
# Of the crates, these are what simulated jobs run.
CRATES = ("edl-optim", "edl-ps", "edl-python", "edl-store", "edl-wire")


def run(first: int) -> tuple[list[str], Counter[str], Counter[str]]:
    """Run the jobs of some seeds; return stories of what went wrong, and how many had what."""
    logging.disable(logging.CRITICAL)
    gc.disable()  # The process ends after these jobs; to look for cycles takes a sixth of the time.
    kinds: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    wrong = []
    with folder_in_memory() as folder:
        many = Many(Path(folder))
        for seed in range(first, first + AT_ONCE):
            kinds[kind_of(seed)] += 1
            faults.update(fault.kind for fault in drawn(seed, PROCESS_FAULTS))
            if (found := many.run(seed)[0]) is not None:
                wrong.append(many.story(seed, found))
    return wrong, kinds, faults


def code() -> str:
    """Return a digest of the code that the jobs run; ranges of seeds with the same one add up."""
    root = Path(__file__).parents[2]
    loaded = {Path(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None)}
    files = [path for path in loaded if path.suffix == ".py" and path.is_relative_to(root)]
    files = [path for path in files if ".venv" not in path.parts]
    digest = hashlib.sha256()
    rust = [path for crate in CRATES for path in root.glob(f"crates/{crate}/src/**/*.rs")]
    for path in sorted([*files, *rust]):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


@click.command()
@click.option("--seeds", default=100_000, help="How many jobs.")
@click.option("--first", default=10_000, help="Seed of the first one.")
@click.option("--processes", default=os.cpu_count() or 1, help="How many at a time.")
@click.option("--minutes", default=0.0, help="Begin no more after so long; 0: run all seeds.")
@click.option("--record", type=click.Path(path_type=Path), help="Where the numbers go, as JSON.")
def main(seeds: int, first: int, processes: int, minutes: float, record: Path | None) -> None:
    """Run simulated jobs in which things go wrong; fail if a count is not exact."""
    began = time.monotonic()
    kinds: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    num_wrong = 0
    firsts = range(first, first + seeds, AT_ONCE)
    gc.freeze()  # what is loaded is shared with the processes of the jobs
    with multiprocessing.Pool(processes, maxtasksperchild=1) as pool, Progress() as progress:
        bar = progress.add_task("jobs", total=len(firsts) * AT_ONCE)
        for stories, of_kind, had in pool.imap_unordered(run, firsts):
            progress.advance(bar, AT_ONCE)
            kinds.update(of_kind)
            faults.update(had)
            num_wrong += len(stories)
            for story in stories:
                progress.console.print(story, markup=False, highlight=False)
            if minutes and time.monotonic() - began > 60 * minutes:
                break
    seconds = time.monotonic() - began
    count = sum(kinds.values())
    click.echo(
        f"code {code()}, seeds from {first:,}: {count:,} jobs in {seconds:,.0f} s "
        f"({3600 * count / seconds:,.0f} an hour): {num_wrong} went wrong"
    )
    if record is not None:
        found = {
            "when": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": f"{platform.machine()}, {processes} processes",
            "code": code(),
            "first_seed": first,
            "jobs": count,
            "went_wrong": num_wrong,
            "seconds": round(seconds),
            "jobs_per_hour": round(3600 * count / seconds),
            "jobs_by_kind": dict(kinds.most_common()),
            "faults_drawn": dict(faults.most_common()),
        }
        record.write_text(json.dumps(found, indent=1) + "\n")
    raise SystemExit(bool(num_wrong))


if __name__ == "__main__":
    main()
