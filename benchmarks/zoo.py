"""Test metrics of models of the zoo, against plain Keras and a linear model on the same split.

    make bench ONLY=zoo FLAGS="--data=FOLDER"
    python benchmarks/zoo.py --data=FOLDER --only=adult --only=din    # in slices

Each run is a row of `results/zoo.json`, which is written after each run. A run whose row exists
with the same settings is skipped, unless `--again` is given. The sides are

- `plain`: `fit` in one process with the same model file, once for each seed;
- `job`: `elasticdl train` with the strategies of `STRATEGIES` that suit the model. If workers
  reduce dense parameters, an update has as many records as an update of plain training;
- `linear`: scikit-learn's logistic regression, words and ids as one-hot categories.

A job is as good as plain training if it is below the mean of the seeds by at most 0.002 or two of
their standard deviations. In jobs of all-reduce, batch norm sees a quarter of plain training's
minibatch. So jobs of three workers are also compared with one worker that has the same minibatches.
FOLDER has the original files under their published names: `adult/adult.data.gz`,
`adult/adult.test.gz`, `census_kdd/census-income*.gz`, `mnist/train-*-ubyte.gz`,
`cifar10/*train*.tar.gz`, `cifar10/*test*.tar.gz`. Models without data are left out. Models in
PyTorch are left out if it is not installed; `make test-torch` installs it and prints the place.
Flights come with a package; `din`, `lr` and the lines of `dac_*` are made up. Jobs of
`adult_sorted` train on a file sorted by label, with `--shuffle=records`; plain training has the
original file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jobs import ROOT, environment
from report import RESULTS, machine, versions

from benchmarks.zoo_data import Data, make_data
from benchmarks.zoo_verdicts import ONE_WORKER, verdicts

PEERS = ROOT / "benchmarks" / "peers"
STRATEGIES = {
    "ParameterServerStrategy": ("--num_workers=2", "--num_ps_pods=2"),
    "AllreduceStrategy": ("--num_workers=3",),
    "HybridStrategy": ("--num_workers=2", "--num_ps_pods=2"),
    ONE_WORKER: ("--num_workers=1",),
}
"""Asynchronous, where there are ps replicas."""
PS, ALLREDUCE, HYBRID, _ = STRATEGIES
_PARTS = {PS: 1, ALLREDUCE: 4, HYBRID: 2, ONE_WORKER: 4}
"""How many minibatches make an update. Three workers share four, by a global batch."""
_TIMEOUT_SECONDS = 3 * 3600


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the zoo and how it is trained.

    data: A name of `zoo_data`.
    params: `--model_params` of a job.
    plain_params: Other parameters for plain Keras, which needs the number of ids.
    strategies: The strategies of its jobs.
    learning_rate: Rate for plain training and jobs if the rate of the model file is too high for
        plain training; None: the rate of the model file.
    framework, peer: The framework, and the script that trains the model in one process.
    job_data, job_options: Other data for jobs than for plain training, and flags for this data.
    ps_options: Flags for asynchronous jobs only.
    """

    name: str
    model_def: str
    data: str
    num_epochs: int
    minibatch_size: int
    params: str = ""
    plain_params: str | None = None
    metric: str = "auc"
    strategies: tuple[str, ...] = ("ParameterServerStrategy",)
    learning_rate: float | None = None
    framework: str = "keras"
    peer: str = "zoo_fit.py"
    job_data: str = ""
    job_options: tuple[str, ...] = ()
    ps_options: tuple[str, ...] = ()


def _dac(kind: str) -> Model:
    params = f"model={kind}; embedding_dim=8"
    return Model(f"dac_{kind}", "dac_ctr.elasticdl_train.forward", "dac", 1, 512, params)


DIN_SIZES = "num_items=1000;num_categories=100"
MIXED = ("--shuffle=records",)
MNIST_RATE = 0.01
CIFAR10_RATE = 0.002  # of what momentum 0.9 bears, a delay of one update leaves a 38th
MNIST_API = "mnist.mnist_functional_api.custom_model"
MODELS = (
    Model("adult", "adult.model.forward", "adult", 5, 128),
    Model(
        *("adult_sorted", "adult.model.forward", "adult", 5, 128),
        job_data="adult_sorted",
        job_options=MIXED,
    ),
    Model("census", "census.model.forward", "census", 4, 128),
    Model("flights", "flights.deepfm.forward", "flights", 3, 512, strategies=(PS, HYBRID)),
    Model("lr", "lr.model.forward", "lr", 2, 256, plain_params="shrink=10000"),
    Model("din", "din.model.forward", "din", 2, 128, DIN_SIZES),
    *map(_dac, ("wide_deep", "deepfm", "xdeepfm", "dcn", "dcn_v2")),
    Model(
        *("iris", "iris.model.forward", "iris", 20, 10),
        metric="accuracy",
        strategies=(PS, ALLREDUCE),
    ),
    Model(
        *("mnist", MNIST_API, "mnist", 3, 64),
        metric="accuracy",
        strategies=(PS, ALLREDUCE, ONE_WORKER),
        learning_rate=MNIST_RATE,
    ),
    Model(
        *("mnist_torch", "mnist.model_torch.custom_model", "mnist", 3, 64),
        metric="accuracy",
        strategies=(PS, ALLREDUCE, ONE_WORKER),
        learning_rate=MNIST_RATE,
        ps_options=("--max_staleness=1",),  # 3 updates late, it learns slower at this rate
        framework="torch",
        peer="zoo_torch.py",
    ),
    Model(
        *("flights_torch", "flights.deepfm_torch.forward", "flights", 3, 512),
        metric="accuracy",
        strategies=(PS, HYBRID),
        framework="torch",
        peer="zoo_torch.py",
    ),
    Model(
        *("mnist_subclass", "mnist.mnist_subclass.CustomModel", "mnist", 3, 64),
        metric="accuracy",
        strategies=(PS, ALLREDUCE),
        learning_rate=MNIST_RATE,
    ),
    Model(
        *("cifar10", "cifar10.model.custom_model", "cifar10", 5, 64),
        metric="accuracy",
        job_options=MIXED,
        strategies=(PS, ALLREDUCE, ONE_WORKER),
        learning_rate=CIFAR10_RATE,
    ),
    Model(
        *("cifar10_mobilenetv2", "cifar10.cifar10_mobilenetv2.custom_model", "cifar10", 5, 64),
        metric="accuracy",
        job_options=MIXED,
        strategies=(PS, ALLREDUCE),
        learning_rate=CIFAR10_RATE,
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One training and its metric on the test data.

    side: plain, job or linear.
    strategy: The strategy of a job; else empty.
    settings: The settings that decide the result. A row with equal settings is not made again.
    """

    model: str
    side: str
    strategy: str
    framework: str
    seed: int
    settings: dict[str, Any]
    metric: str
    value: float
    seconds: float
    date: str
    load_average: float

    @property
    def place(self) -> tuple[Any, ...]:
        """The identity of a row. A newer row replaces an older one with the same identity."""
        return self.model, self.side, self.strategy, self.framework, self.seed

    @property
    def key(self) -> tuple[Any, ...]:
        """The identity and the settings. A run with an equal key is skipped."""
        return *self.place, json.dumps(self.settings, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Run:
    """A planned training."""

    model: Model
    side: str
    strategy: str = ""
    seed: int = 0

    @property
    def data(self) -> str:
        """The name of the data."""
        return self.model.job_data if self.strategy and self.model.job_data else self.model.data

    def settings(self) -> dict[str, Any]:
        """Return what decides the result."""
        model = self.model
        if self.side == "linear":
            return {"data": self.data}
        params = model.params
        if self.side == "plain" and model.plain_params is not None:
            params = model.plain_params
        settings = {
            "data": self.data,
            "model_def": model.model_def,
            "num_epochs": model.num_epochs,
            "minibatch_size": model.minibatch_size,
            "model_params": params,
            "options": self._options() if self.strategy else [],
        }
        if model.learning_rate is not None:
            settings["learning_rate"] = model.learning_rate
        return settings

    def _options(self) -> list[str]:
        model = self.model
        own = model.ps_options if self.strategy == PS else ()
        return [*STRATEGIES[self.strategy], *model.job_options, *own]

    def row(self, value: float, seconds: float) -> Row:
        """Return the row that says what was reached."""
        framework = "scikit-learn" if self.side == "linear" else self.model.framework
        return Row(
            *(self.model.name, self.side, self.strategy, framework, self.seed, self.settings()),
            *(self.model.metric, value, round(seconds, 1)),
            datetime.now(UTC).isoformat(timespec="seconds"),
            round(os.getloadavg()[0], 1),
        )


class Results:
    """The rows of a file, which is written anew with each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = json.loads(path.read_text())["runs"] if path.exists() else []
        self.rows = [Row(**row) for row in found]

    def has(self, run: Run) -> bool:
        """Whether a run was made with the same settings."""
        key = run.row(0.0, 0.0).key
        return any(row.key == key for row in self.rows)

    def linear_of(self, run: Run) -> Row | None:
        """The linear model of a run, if it was fitted to the same data for another model."""
        key = run.row(0.0, 0.0).key
        found = (row for row in self.rows if row.side == run.side == "linear")
        same = (replace(row, model=run.model.name) for row in found)
        return next((row for row in same if (row.key, row.metric) == (key, run.model.metric)), None)

    def add(self, row: Row) -> None:
        """Add a row, instead of one of the same place."""
        self.rows = [*(other for other in self.rows if other.place != row.place), row]
        order = [model.name for model in MODELS]
        self.rows.sort(key=lambda row: order.index(row.model) if row.model in order else len(order))
        self.write()

    def write(self) -> None:
        """Write the rows, and what they show."""
        document = {
            "machine": machine(),
            "versions": versions(),
            "verdicts": [asdict(verdict) for verdict in verdicts(map(asdict, self.rows))],
            "runs": [asdict(row) for row in self.rows],
        }
        self.path.with_suffix(".partial").write_text(json.dumps(document, indent=1) + "\n")
        self.path.with_suffix(".partial").replace(self.path)


def runs(
    models: Sequence[Model], seeds: int, job_seeds: int, sides: Sequence[str]
) -> Iterator[Run]:
    """Yield the runs of some models, the cheap and most telling ones first."""
    for model in models:
        if "linear" in sides:
            yield Run(model, "linear")
        if "job" in sides:
            for strategy in model.strategies:
                yield from (Run(model, "job", strategy, seed) for seed in range(job_seeds))
        if "plain" in sides:
            yield from (Run(model, "plain", seed=seed) for seed in range(seeds))


def main() -> None:
    """Make the runs that are missing, and print what all of them show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [model.name for model in MODELS]
    sides = ("linear", "job", "plain")
    parser.add_argument("--data", type=Path, help="folder of the original files")
    parser.add_argument("--only", action="append", choices=names, help="default: all models")
    parser.add_argument("--side", action="append", choices=sides, help="default: all three")
    parser.add_argument("--seeds", type=int, default=5, help="of plain training")
    parser.add_argument("--job_seeds", type=int, default=1, help="of jobs; their mean counts")
    parser.add_argument("--again", action="store_true", help="also runs that were made before")
    parser.add_argument("--results", type=Path, default=RESULTS / "zoo.json", help="file")
    parser.add_argument("--short", action="store_true", help="one seed, little data, not kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        scratch = Path(folder)
        results = Results(scratch / "zoo.json" if args.short else args.results)
        models = [model for model in MODELS if model.name in (args.only or names)]
        if find_spec("torch") is None:
            left_out = [model.name for model in models if model.framework == "torch"]
            print(f"left out, for PyTorch is not installed: {', '.join(left_out) or 'none'}")
            models = [model for model in models if model.framework != "torch"]
        seeds = 1 if args.short else args.seeds
        wanted = list(runs(models, seeds, args.job_seeds, args.side or sides))
        todo = [run for run in wanted if args.again or not results.has(run)]
        print(f"{len(wanted)} runs, of which {len(todo)} are to be made", flush=True)
        made: dict[str, Data | None] = {}
        for run in todo:
            if (linear := results.linear_of(run)) and not args.again:
                results.add(linear)
                continue
            name = run.data
            if name not in made:
                made[name] = make_data(name, args.data, scratch, args.short)
                if made[name] is None:
                    print(f"{name}: left out, for its files are not in --data={args.data}")
            if data := made[name]:
                began = time.perf_counter()
                value = _measure(run, data, scratch)
                row = run.row(value, time.perf_counter() - began)
                results.add(row)
                what = f"{row.side} {row.strategy}".strip()
                print(f"{row.model}, {what}, seed {row.seed}: {row.metric} {value:.4f}", flush=True)
        results.write()
        for verdict in verdicts(map(asdict, results.rows)):
            print(verdict.text)


def _measure(run: Run, data: Data, scratch: Path) -> float:
    if run.side == "linear":
        script, more = "zoo_linear.py", list(data.linear)
        return _printed(script, data, more, run.model.metric)
    if run.side == "plain":
        more = [*_training(run), f"--seed={run.seed}"]
        return _printed(run.model.peer, data, more, run.model.metric)
    return _job(run, data, scratch)


def _printed(script: str, data: Data, more: Sequence[str], metric: str) -> float:
    """Return a number that a script prints in its last line."""
    command = [sys.executable, str(PEERS / script), f"--train={data.train}", f"--test={data.test}"]
    if data.reader_params:
        command.append(f"--data_reader_params={data.reader_params}")
    variables = {"ELASTICDL_STATISTICS": str(data.statistics)} if data.statistics else {}
    said = _run([*command, *more], **variables)
    return float(json.loads(said.splitlines()[-1])[metric])


def _job(run: Run, data: Data, scratch: Path) -> float:
    job = Path(tempfile.mkdtemp(prefix=f"{run.model.name}-", dir=scratch))
    command = [
        *("elasticdl", "train", f"--model_zoo={ROOT / 'model_zoo'}", *_training(run)),
        *(f"--training_data={data.train}", f"--validation_data={data.test}"),
        *([f"--data_reader_params={data.reader_params}"] if data.reader_params else []),
        *([f"--statistics={data.statistics}"] if data.statistics else []),
        f"--distribution_strategy={ALLREDUCE if run.strategy == ONE_WORKER else run.strategy}",
        *run.settings()["options"],
        *(f"--seed={run.seed}", f"--summary={job / 'summary.json'}", f"--job_dir={job / 'job'}"),
    ]
    _run(command)
    return float(json.loads((job / "summary.json").read_text())["metrics"][run.model.metric])


def _training(run: Run) -> list[str]:
    settings = run.settings()
    if run.strategy in (ALLREDUCE, ONE_WORKER):
        settings["global_batch_size"] = settings["minibatch_size"]
    settings["minibatch_size"] //= _PARTS.get(run.strategy, 1)
    flags = ("model_def", "num_epochs", "minibatch_size", "global_batch_size", "model_params")
    flags += ("learning_rate",)
    return [f"--{name}={settings[name]}" for name in flags if settings.get(name)]


def _run(command: Sequence[str], **variables: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=environment() | variables,
        timeout=_TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
