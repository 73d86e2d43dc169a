"""What it costs a job to be seen: its throughput with and without all that tells of it.

The same job runs in turn: as it is, with its page open (asked as a browser does); and with
`ablated/unseen`, which writes no event, labels no second and measures nothing for heartbeats,
without a page. The model computes next to nothing, so minibatches are many and what is done for
each one weighs most. The limit is one percent.

    python benchmarks/seeing.py [--short]
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from jobs import ROOT, run_local
from report import Side, asked_for_short, compare, write_results

UNSEEN = ROOT / "benchmarks" / "ablated" / "unseen"
NUM_RECORDS, NUM_IDS = 500_000, 20
MINIBATCHES = (64, 512)
SECONDS, RUNS = 30.0, 6
SHORT_SECONDS = 6.0
ASK_SECONDS = 0.75  # as the page does


def main() -> None:
    """Measure and write `benchmarks/results/seeing.json`."""
    is_short = asked_for_short(__doc__)
    seconds, runs = (SHORT_SECONDS, 1) if is_short else (SECONDS, RUNS)
    rows = []
    with tempfile.TemporaryDirectory(prefix="seeing-") as folder:
        data = Path(folder, "ids.txt")
        write_ids(data)
        for size in MINIBATCHES:
            sides: dict[bool, list[float]] = {True: [], False: []}
            for number in range(2 * runs):
                is_seen = number % 2 == 0
                job_dir = Path(folder, f"job-{size}-{number}")
                sides[is_seen].append(run(data, size, job_dir, seconds, is_seen))
                print(size, "seen" if is_seen else "unseen", sides[is_seen][-1], file=sys.stderr)
            what = f"minibatches of {size}: a job that is seen, its page open, and one that is not"
            rows.append(compare(what, "records/s", *(Side(tuple(sides[i])) for i in (True, False))))
    write_results("seeing", rows, {"limit": "ratio of at least 0.99"}, keep=not is_short)


def write_ids(path: Path) -> None:
    """Write lines of ids, of which some come often."""
    with path.open("w") as file:
        for number in range(NUM_RECORDS):
            ids = ((number * (place + 1) * 2_654_435_761) % 100_003 for place in range(NUM_IDS))
            file.write(" ".join(map(str, ids)) + "\n")


def run(data: Path, minibatch_size: int, job_dir: Path, seconds: float, is_seen: bool) -> float:
    """Run the job for some seconds; return its records a second."""
    options = [
        "--model_def=counting.model.forward",
        f"--training_data={data}",
        "--distribution_strategy=ParameterServerStrategy",
        "--num_workers=1",
        "--num_ps_pods=1",
        f"--minibatch_size={minibatch_size}",
        "--num_epochs=10000",
        f"--job_dir={job_dir}",
    ]
    if not is_seen:
        with _python_path(UNSEEN):
            return run_local(seconds, *options)
    with _asked(job_dir / "page.json") as answers:
        found = run_local(seconds, *options, "--dashboard_port=0")
    if not answers:
        raise SystemExit(f"{job_dir}: expected a page that answers, found none")
    return found


@contextlib.contextmanager
def _python_path(folder: Path) -> Iterator[None]:
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), before)))
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = before


@contextlib.contextmanager
def _asked(page_file: Path) -> Iterator[list[int]]:
    """Ask the page for what is new within the block, as a browser does; yield sizes of answers."""
    is_over, answers = threading.Event(), list[int]()

    def ask() -> None:
        version = generation = -1
        while not is_over.wait(ASK_SECONDS):
            try:
                page = json.loads(page_file.read_text())
                asked = f"{page['address']}/board?since={version}&generation={generation}"
                request = urllib.request.Request(asked)
                request.add_header("Authorization", f"Bearer {page['url'].partition('token=')[2]}")
                with urllib.request.urlopen(request, timeout=10) as answer:
                    body = answer.read()
            except OSError:
                continue  # it is not there yet, or not any more
            found = json.loads(body)
            version, generation = found["version"], found["generation"]
            answers.append(len(body))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        is_over.set()
        thread.join()


if __name__ == "__main__":
    main()
