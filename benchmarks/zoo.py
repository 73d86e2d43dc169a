"""What models of the zoo reach, beside plain Keras and a linear model on the same split.

    make zoo-report ADULT=FOLDER CENSUS=FOLDER

FOLDER has `train.csv` and `test.csv`, as `adult.prepare` and `census.prepare` write them. `din` is
trained on data that its `make_data.py` makes up. Each row has

- `plain`: `fit` of Keras in one process with the same model file, once for each seed;
- `job`: `elasticdl train` with ParameterServerStrategy, 2 workers and 2 ps replicas, asynchronous;
- `linear`: scikit-learn's logistic regression on one-hot categories.

A job is as good as plain training when it is below the mean of the seeds by no more than 0.002 or
two of their standard deviations.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from jobs import ROOT, environment
from report import RESULTS

PEERS = ROOT / "benchmarks" / "peers"
TOLERANCE = 0.002


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the zoo and how it is trained.

    linear: Flags of `peers/zoo_linear.py` for its data.
    params: `--model_params` of both sides: plain Keras needs to know how many ids there are.
    """

    name: str
    num_epochs: int
    minibatch_size: int
    linear: tuple[str, ...]
    params: str = ""


MODELS = (
    Model("adult", 5, 128, ("--label=income", "--positive=>50K")),
    Model("census", 4, 128, ("--label=income", "--positive=50000+.", "--categories=CATEGORIES")),
    Model(
        "din",
        2,
        128,
        ("--label=clicked", "--positive=1", "--categories=item,category"),
        "num_items=1000;num_categories=100",
    ),
)
MADE_UP = ("din",)


@dataclass(frozen=True, slots=True)
class Row:
    """What was reached on one data set; all numbers are AUC on its test file."""

    model: str
    num_records: int
    plain: list[float]
    job: float
    linear: float

    @property
    def allowed(self) -> float:
        """How far below the mean of plain training a job may be."""
        spread = 2 * statistics.stdev(self.plain) if len(self.plain) > 1 else 0.0
        return max(TOLERANCE, spread)

    @property
    def is_as_good(self) -> bool:
        """Whether the job is as good as plain training."""
        return self.job >= statistics.fmean(self.plain) - self.allowed


def main() -> None:
    """Run all sides, print a table, and write `results/zoo.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--adult", type=Path, help="folder; without it the model is left out")
    parser.add_argument("--census", type=Path, help="folder; without it the model is left out")
    parser.add_argument("--seeds", type=int, default=5, help="of plain training")
    parser.add_argument("--short", action="store_true", help="one seed, little data, not kept")
    args = parser.parse_args()
    given = {"adult": args.adult, "census": args.census}
    with tempfile.TemporaryDirectory(prefix="zoo-") as scratch:
        found = []
        for model in MODELS:
            folder = given.get(model.name)
            if model.name in MADE_UP:
                folder = _make_up(model.name, Path(scratch), 4000 if args.short else 200_000)
            if folder is None:
                print(f"{model.name}: left out, for its data is not given (--{model.name})")
                continue
            row = _measure(model, folder, 1 if args.short else args.seeds, Path(scratch))
            found.append(row)
            print(*_lines(row), sep="\n", flush=True)
    if not args.short:
        rows = [
            {**asdict(row), "allowed": row.allowed, "is_as_good": row.is_as_good} for row in found
        ]
        text = json.dumps({"unit": "AUC", "models": rows}, indent=2)
        (RESULTS / "zoo.json").write_text(text + "\n")


def _measure(model: Model, folder: Path, seeds: int, scratch: Path) -> Row:
    train, test = folder / "train.csv", folder / "test.csv"
    data = (f"--train={train}", f"--test={test}")
    linear = [flag.replace("CATEGORIES", _categories()) for flag in model.linear]
    return Row(
        model.name,
        sum(1 for _ in train.open()) - 1,
        [_plain(model, data, seed) for seed in range(seeds)],
        _job(model, train, test, scratch),
        _auc([sys.executable, str(PEERS / "zoo_linear.py"), *data, *linear]),
    )


def _plain(model: Model, data: Sequence[str], seed: int) -> float:
    command = [sys.executable, str(PEERS / "zoo_fit.py"), *data, *_training(model)]
    return _auc([*command, f"--seed={seed}"])


def _job(model: Model, train: Path, test: Path, scratch: Path) -> float:
    summary = scratch / f"{model.name}.json"
    command = [
        *("elasticdl", "train", f"--model_zoo={ROOT / 'model_zoo'}", *_training(model)),
        *(f"--training_data={train}", f"--validation_data={test}"),
        *("--data_reader_params=skip_header=true", f"--summary={summary}"),
        *("--distribution_strategy=ParameterServerStrategy", "--num_workers=2", "--num_ps_pods=2"),
        f"--job_dir={scratch / model.name / 'job'}",
    ]
    _run(command)
    return float(json.loads(summary.read_text())["metrics"]["auc"])


def _training(model: Model) -> list[str]:
    return [
        f"--model_def={model.name}.model.forward",
        f"--num_epochs={model.num_epochs}",
        f"--minibatch_size={model.minibatch_size}",
        *([f"--model_params={model.params}"] if model.params else []),
    ]


def _make_up(name: str, scratch: Path, num_records: int) -> Path:
    folder = scratch / f"{name}-data"
    script = [sys.executable, "-m", f"{name}.make_data", f"--output={folder}"]
    _run([*script, f"--num_records={num_records}"])
    return folder


def _categories() -> str:
    """Return the columns of census that are names, though some are written as numbers."""
    return _run([sys.executable, "-c", "from census.model import *; print(*CATEGORIES, sep=',')"])


def _auc(command: Sequence[str]) -> float:
    return float(json.loads(_run(command).splitlines()[-1])["auc"])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(), timeout=3600
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def _lines(row: Row) -> Iterator[str]:
    spread = statistics.stdev(row.plain) if len(row.plain) > 1 else 0.0
    yield f"{row.model} ({row.num_records:,} records)"
    plain = f"{statistics.fmean(row.plain):.4f} +- {spread:.4f}"
    yield f"  plain Keras {plain} ({len(row.plain)} seeds)"
    yield f"  job 2 + 2   {row.job:.4f}  {'as good' if row.is_as_good else 'WORSE'}"
    yield f"  linear      {row.linear:.4f}  {'beaten' if row.job > row.linear else 'NOT BEATEN'}"


if __name__ == "__main__":
    main()
