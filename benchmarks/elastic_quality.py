"""AUC of jobs whose workers stay, and of jobs whose workers come and go: the report's experiment.

    python benchmarks/elastic_quality.py --data=train.txt    # full: lines of Criteo's, 18 jobs
    python benchmarks/elastic_quality.py --rows=2000000      # the same on made-up lines
    python benchmarks/elastic_quality.py --short             # few lines, 1 and 2 workers, 1 seed

Wide & deep and xDeepFM of `model_zoo/dac_ctr`, one epoch, 2 ps replicas, asynchronous, and for each
three seeds of

- gang: 4 workers from the first to the last step, and 8;
- elastic: 4 workers, 8 after a third of the updates, 4 again after two thirds.

Eight workers that pull one minibatch ahead make gradients 15 updates late. Wide & deep bears that;
xDeepFM can lose all that it has learnt for some hundred updates. Its jobs bound the staleness.

Results are written after each job; one that was run on the same data is not run again, but with
`--again`. The curves of the AUC over the updates are one figure,
`docs/figures/elastic-quality.svg`. Elastic jobs do as well as the others if the mean of their last
AUC lies in the range of the gangs' seeds, or above.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs import ROOT, environment
from report import RESULTS, machine, versions

from elasticdl.data.open import open_reader
from elasticdl.observe.events import read_events
from elasticdl.observe.svg import line, svg, text

MODELS = ("wide_deep", "xdeepfm")
OPTIONS: dict[str, tuple[str, ...]] = {"wide_deep": (), "xdeepfm": ("--max_staleness=8",)}
MINIBATCH, POINTS = 512, 15
FIGURE = ROOT / "docs" / "figures" / "elastic-quality.svg"
COLOURS = ("#4c78a8", "#54a24b", "#f58518")
_LOOK_SECONDS = 0.5
_LEFT, _TOP, _WIDTH, _HEIGHT, _GAP = 60, 60, 380, 220, 70


@dataclass(frozen=True, slots=True)
class Curve:
    """AUC of one job: `points` are (updates, AUC), the last one after all records.

    most_workers: At the same time; of an elastic job it shows that they came.
    """

    model: str
    mode: str
    seed: int
    points: list[tuple[int, float]]
    most_workers: int
    seconds: float

    @property
    def last(self) -> float:
        """AUC at the end."""
        return self.points[-1][1]


def main() -> None:
    """Run the jobs, print what they reached, and write figure and results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="lines of Criteo's; else made up")
    parser.add_argument("--rows", type=int, default=2_000_000, help="made-up lines")
    parser.add_argument("--workers", default="4,8", help="few and many")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", action="append", choices=MODELS, help="default: both")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder")
    parser.add_argument("--again", action="store_true", help="also jobs that were run before")
    parser.add_argument("--short", action="store_true", help="little data, few workers, not kept")
    args = parser.parse_args()
    few, many = (1, 2) if args.short else map(int, args.workers.split(","))
    rows, seeds = (300_000, 1) if args.short else (args.rows, args.seeds)
    modes = {f"gang {few}": (few,), f"gang {many}": (many,), f"elastic {few}-{many}": (few, many)}
    what = "lines of Criteo's" if args.data else f"{rows:,} made-up lines"
    with tempfile.TemporaryDirectory(prefix="elastic-quality-") as scratch:
        folder = Path(scratch)
        kept = Path(tempfile.gettempdir()) if args.short else args.results
        results = Results(kept, what, list(modes))
        wanted = [
            (model, mode, seed)
            for seed in range(seeds)  # a slice has all modes of both models
            for model in args.model or MODELS
            for mode in modes
        ]
        todo = [one for one in wanted if args.again or args.short or not results.has(*one)]
        print(f"{len(wanted)} jobs, of which {len(todo)} are to be run", flush=True)
        steps = prepare(folder, args.data, rows) // MINIBATCH if todo else 0
        for model, mode, seed in todo:
            found = run(folder, model, mode, modes[mode], seed, steps)
            results.add(found)
            print(
                f"{model}, {mode}, seed {seed}: AUC {found.last:.4f} after "
                f"{found.points[-1][0]} updates, {found.most_workers} workers at most",
                flush=True,
            )
    for verdict in verdicts(results.curves, list(modes)):
        print(verdict)
    print(f"figure: {results.figure}")


class Results:
    """The curves so far: `elastic_quality.json` and `.svg` of a folder, written after each job.

    Args:
        folder: `benchmarks/results` has the figure in `docs/figures`.
        what: On which data; curves of other data are left out.
        modes: Names, in their order.
    """

    def __init__(self, folder: Path, what: str, modes: Sequence[str]) -> None:
        self._path = folder / "elastic_quality.json"
        self.figure = FIGURE if folder == RESULTS else folder / "elastic-quality.svg"
        self._what, self._modes = what, modes
        self.curves: list[Curve] = []
        if self._path.exists():
            document = json.loads(self._path.read_text())
            if document["data"] == what:
                self.curves = [Curve(**curve) for curve in document["curves"]]

    def has(self, model: str, mode: str, seed: int) -> bool:
        """Whether a job was run."""
        return any((c.model, c.mode, c.seed) == (model, mode, seed) for c in self.curves)

    def add(self, curve: Curve) -> None:
        """Write one curve more, or instead of that of the same job."""
        key = curve.model, curve.mode, curve.seed
        others = [c for c in self.curves if (c.model, c.mode, c.seed) != key]
        self.curves = [*others, curve]
        document = {
            "data": self._what,
            "options": OPTIONS,
            "machine": machine(),
            "versions": versions(),
            "verdicts": verdicts(self.curves, self._modes),
            "curves": [asdict(found) for found in self.curves],
        }
        self._path.write_text(json.dumps(document, indent=1) + "\n")
        title = f"AUC over updates, {self._what}, minibatches of {MINIBATCH}, 2 ps replicas"
        self.figure.parent.mkdir(exist_ok=True)
        self.figure.write_text(figure(title, self.curves, list(self._modes)))


def prepare(folder: Path, data: Path | None, rows: int) -> int:
    """Convert the lines and analyze them; return how many records there are to train on."""
    if data is None:
        data = folder / "train.txt"
        call(sys.executable, "-m", "criteo.generate", f"--output={data}", f"--num_records={rows}")
    dac = folder / "dac"
    call("elasticdl", "data", "convert", data.absolute(), dac, "--from=criteo", "--validation=1/20")
    call("elasticdl", "data", "analyze", dac / "train", f"--output={folder / 'statistics.json'}")
    return sum(shard.num_records for shard in open_reader(str(dac / "train")).shards())


def run(
    folder: Path, model: str, mode: str, workers: Sequence[int], seed: int, steps: int
) -> Curve:
    """Run a job; an elastic one is scaled up after a third of its updates, and down after two."""
    job = folder / f"{model}-{mode.replace(' ', '-')}-{seed}"
    every = max(1, steps // POINTS)
    summary = folder / f"{job.name}.json"
    command = [
        "elasticdl",
        "train",
        f"--model_zoo={ROOT / 'model_zoo'}",
        "--model_def=dac_ctr.elasticdl_train.forward",
        f"--model_params=model={model}; embedding_dim=8",
        f"--statistics={folder / 'statistics.json'}",
        f"--training_data={folder / 'dac' / 'train'}",
        f"--validation_data={folder / 'dac' / 'val'}",
        "--distribution_strategy=ParameterServerStrategy",
        "--num_ps_pods=2",
        f"--num_workers={workers[0]}",
        f"--minibatch_size={MINIBATCH}",
        "--num_minibatches_per_task=4",
        f"--evaluation_steps={every}",
        "--evaluation_minibatches=100",
        f"--seed={seed}",
        f"--job_dir={job}",
        f"--summary={summary}",
        *OPTIONS[model],
    ]
    plan = [(steps // 3, workers[1]), (2 * steps // 3, workers[0])] if len(workers) > 1 else []
    most, began = 0, time.monotonic()
    with (folder / f"{job.name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(), cwd=folder)
        try:
            while process.poll() is None:
                events = list(read_events(job)) if job.is_dir() else []
                most = max(most, _alive(events))
                if plan and _updates(events) >= plan[0][0]:
                    call("elasticdl", "scale", job, f"--workers={plan.pop(0)[1]}")
                time.sleep(_LOOK_SECONDS)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise SystemExit((folder / f"{job.name}.log").read_text())
    if plan:
        raise SystemExit(f"{job.name} was over before it was scaled; give it more --rows")
    result = json.loads(summary.read_text())
    aucs = [e["metrics"]["auc"] for e in read_events(job) if e["event"] == "evaluation"]
    points = [(every * (k + 1), auc) for k, auc in enumerate(aucs[:-1])]
    points.append((result["model_version"], aucs[-1]))
    return Curve(model, mode, seed, points, most, round(time.monotonic() - began, 1))


def _updates(events: Sequence[dict[str, Any]]) -> int:
    """Return how many updates the workers know of."""
    known = [e["model_version"] for e in events if e["event"] == "progress"]
    return max(known, default=0)


def _alive(events: Sequence[dict[str, Any]]) -> int:
    """Return how many workers had registered and were neither lost nor gone."""
    alive: set[str] = set()
    for event in sorted(events, key=lambda event: event["time"]):
        name = str(event.get("process", ""))
        if name.startswith("worker"):
            if event["event"] == "registered":
                alive.add(name)
            elif event["event"] in ("left", "lost"):
                alive.discard(name)
    return len(alive)


def verdicts(curves: Sequence[Curve], modes: Sequence[str]) -> list[str]:
    """Say of each model what each mode reached, and whether elastic jobs did as well."""
    found = []
    for model in dict.fromkeys(curve.model for curve in curves):
        last = {m: [c.last for c in curves if (c.model, c.mode) == (model, m)] for m in modes}
        if not all(last.values()):
            missing = ", ".join(mode for mode, values in last.items() if not values)
            found.append(f"{model}: not run yet: {missing}")
            continue
        gangs, elastic = [*last[modes[0]], *last[modes[1]]], statistics.fmean(last[modes[2]])
        reached = ", ".join(f"{m} {statistics.fmean(v):.4f}" for m, v in last.items())
        is_within = elastic >= min(gangs)
        found.append(
            f"{model}: {reached}; elastic is {'within' if is_within else 'BELOW'} the range of the "
            f"gangs' seeds, {min(gangs):.4f} to {max(gangs):.4f}"
        )
    return found


def figure(title: str, curves: Sequence[Curve], modes: Sequence[str]) -> str:
    """Return an SVG: a chart for each model, a line for each job, but for its first fifth."""
    models = list(dict.fromkeys(curve.model for curve in curves))
    parts = [text(10, 16, title, is_bold=True)]
    for place, mode in enumerate(modes):
        parts.append(line(10 + 150 * place, 34, 30 + 150 * place, 34, COLOURS[place]))
        parts.append(text(36 + 150 * place, 38, mode))
    most = max(step for curve in curves for step, _ in curve.points)
    # All begin at a half: drawn from there, they could not be told apart at the end.
    shown = [[(s, auc) for s, auc in curve.points if s * 5 >= most] for curve in curves]
    values = [auc for points in shown for _, auc in points]
    low, high = min(values), max(values)
    span = max(high - low, 1e-6)
    for number, model in enumerate(models):
        left = _LEFT + number * (_WIDTH + _GAP)
        parts.append(text(left, _TOP - 6, model))
        for tick in range(5):
            value = low + span * tick / 4
            y = _TOP + _HEIGHT * (1 - tick / 4)
            parts.append(line(left, y, left + _WIDTH, y, "#dddddd"))
            parts.append(text(left - 46, round(y) + 4, f"{value:.4f}"))
        for tick in range(5):
            x = left + _WIDTH * tick / 4
            parts.append(text(round(x) - 12, _TOP + _HEIGHT + 16, f"{most * tick // 4:,}"))
        for curve, points in zip(curves, shown, strict=True):
            if curve.model != model:
                continue
            places = [
                (left + _WIDTH * step / most, _TOP + _HEIGHT * (1 - (auc - low) / span))
                for step, auc in points
            ]
            colour = COLOURS[modes.index(curve.mode)]
            for (x, y), (x2, y2) in itertools.pairwise(places):
                parts.append(line(x, y, x2, y2, colour))
    width = _LEFT + len(models) * (_WIDTH + _GAP)
    return svg(parts, width, _TOP + _HEIGHT + 30)


def call(*words: object) -> None:
    """Run a command; a failure ends the program with all that it said."""
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
