"""As many simulated jobs as there is time for: `python -m tests.simulation.many --seeds=100000`."""

import logging
import multiprocessing
import os
import time
from pathlib import Path

import click
from rich.progress import Progress

from tests.simulation.faults import Many, folder_in_memory

AT_ONCE = 250


def wrong_of(first: int) -> list[str]:
    """Return the stories of what went wrong in the jobs of some seeds."""
    logging.disable(logging.CRITICAL)
    with folder_in_memory() as folder:
        many = Many(Path(folder))
        return [many.story(n) for n in range(first, first + AT_ONCE) if many.run(n)[0] is not None]


@click.command()
@click.option("--seeds", default=100_000, help="How many jobs.")
@click.option("--first", default=10_000, help="Seed of the first one.")
@click.option("--processes", default=os.cpu_count() or 1, help="How many at a time.")
def main(seeds: int, first: int, processes: int) -> None:
    """Run simulated jobs in which things go wrong; fail if a count is not exact."""
    began, wrong = time.monotonic(), 0
    firsts = range(first, first + seeds, AT_ONCE)
    with multiprocessing.Pool(processes) as pool, Progress() as progress:
        bar = progress.add_task("jobs", total=len(firsts) * AT_ONCE)
        for stories in pool.imap_unordered(wrong_of, firsts):
            progress.advance(bar, AT_ONCE)
            wrong += len(stories)
            for story in stories:
                progress.console.print(story, markup=False, highlight=False)
    seconds = time.monotonic() - began
    count = len(firsts) * AT_ONCE
    click.echo(f"{count:,} jobs in {seconds:,.0f} s ({count / seconds:.0f}/s): {wrong} went wrong")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
