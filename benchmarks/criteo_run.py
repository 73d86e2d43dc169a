"""From Criteo's lines to a served model: each command with its time and its limit.

    make bench ONLY=criteo_run FLAGS="--rows=2000000"     # of made-up lines
    make bench ONLY=criteo_run FLAGS="--data=train.txt"   # of your own copy

The commands convert and analyze the data, train xDeepFM for one epoch with two workers and two ps
replicas, evaluate, export and predict. Then TensorFlow without elasticdl scores records by the
exported model and must give the same numbers. The AUC stands beside that of the real data in
ElasticDL's report.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jobs import ROOT, environment
from numpy.typing import NDArray
from report import RESULTS, machine, versions
from rich.console import Console
from rich.table import Table

from elasticdl.data.open import open_reader
from elasticdl.observe.events import read_events

PUBLISHED_AUC, PUBLISHED_STEPS = 0.8002, 80_000
MINIBATCH = 512
TOLERANCE = 1e-5  # of logits that differ in how their sums are grouped
SCORED = 100_000  # records that plain TensorFlow scores, at most
MODEL = (
    f"--model_zoo={ROOT / 'model_zoo'}",
    "--model_def=dac_ctr.elasticdl_train.forward",
    "--model_params=model=xdeepfm; embedding_dim=8",
    f"--minibatch_size={MINIBATCH}",
)
_BUSY = 0.8  # of the processors: more is not to be had, with what waits in between
_STAGES = {
    "feed": "reading and parsing (feed)",
    "ids": "finding ids",
    "pull": "pulling rows from the ps replicas",
    "compute": "forward and backward (compute)",
    "push": "pushing gradients to the ps replicas",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """A command, how long it took, and what kept it from being faster.

    processor_seconds: of the command and all that it started.
    """

    name: str
    seconds: float
    num_records: int
    processor_seconds: float
    limit: str


def main() -> None:
    """Run all stages; print a table, and write `results/criteo_rehearsal.json` of a rehearsal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", help="lines of Criteo's; without it lines are made up")
    parser.add_argument("--rows", type=int, default=2_000_000, help="made-up lines")
    parser.add_argument("--folder", type=Path, help="where everything goes, and stays")
    parser.add_argument("--keep", action="store_true", help="write to benchmarks/results/")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="criteo-") as scratch:
        folder = args.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        run = Run(folder)
        run.everything(Path(args.data).absolute() if args.data else None, args.rows)
        document = run.document()
        show(run, is_rehearsal=args.data is None)
        (folder / "report.json").write_text(json.dumps(document, indent=2) + "\n")
        if args.keep:
            path = RESULTS / "criteo_rehearsal.json"
            path.write_text(json.dumps(document, indent=2) + "\n")
    if run.difference > TOLERANCE:
        raise SystemExit(
            f"the exported model gives other numbers in plain TensorFlow: {run.difference:g} away "
            f"from those of elasticdl predict, expected {TOLERANCE:g} at most"
        )


class Run:
    """The stages of one run, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stages: list[Stage] = []
        self.num_records: dict[str, int] = {}
        self.metrics: dict[str, float] = {}
        self.served_auc = float("nan")
        self.difference = float("inf")
        self.num_scored = 0
        self.steps = 0

    def everything(self, data: Path | None, rows: int) -> None:
        """Run the stages; the first that fails ends the program with all that it said."""
        if data is None:
            data = self.folder / "train.txt"
            maker = [sys.executable, "-m", "criteo.generate", f"--output={data}"]
            self._stage("generate", [*maker, f"--num_records={rows}"], rows)
        self._convert(data)
        self._train()
        self._apply()
        self._score()

    def document(self) -> dict[str, Any]:
        """Return what was found, as JSON."""
        return {
            "machine": machine(),
            "versions": versions(),
            "records": self.num_records,
            "steps": self.steps,
            "metrics": self.metrics,
            "auc in plain TensorFlow": self.served_auc,
            "largest difference of a logit": self.difference,
            "stages": [asdict(stage) for stage in self.stages],
            "bottleneck": self.bottleneck(),
        }

    def bottleneck(self) -> str:
        """Name the stage that takes longest, without the making up of data, and what limits it."""
        longest = max(self._of_the_user(), key=lambda stage: stage.seconds)
        share = longest.seconds / sum(stage.seconds for stage in self._of_the_user())
        return f"{longest.name}, {share:.0%} of the time: {longest.limit}"

    def _of_the_user(self) -> list[Stage]:
        return [stage for stage in self.stages if stage.name != "generate"]

    # --- stages ----------------------------------------------------------------------------------

    def _convert(self, data: Path) -> None:
        words = ["data", "convert", str(data), "dac", "--from=criteo", "--validation=1/20"]
        shutil.rmtree(self.folder / "dac", ignore_errors=True)
        self._stage("convert", elasticdl(*words), 0)
        for part in ("train", "val"):
            shards = open_reader(str(self.folder / "dac" / part)).shards()
            self.num_records[part] = sum(shard.num_records for shard in shards)
        total = sum(self.num_records.values())
        self.stages[-1] = replace(self.stages[-1], num_records=total)
        words = ["data", "analyze", "dac/train", "--output=statistics.json"]
        self._stage("analyze", elasticdl(*words), self.num_records["train"])

    def _train(self) -> None:
        job = self.folder / "job"
        for old in (job, self.folder / "export"):
            shutil.rmtree(old, ignore_errors=True)
        command = elasticdl(
            "train",
            *MODEL,
            "--statistics=statistics.json",
            "--training_data=dac/train",
            "--validation_data=dac/val",
            "--distribution_strategy=ParameterServerStrategy",
            "--num_workers=2",
            "--num_ps_pods=2",
            "--num_epochs=1",
            "--output=export",
            "--summary=train.json",
            f"--job_dir={job}",
        )
        before, began = _processor_seconds(), time.time()
        self._call(command)
        ended = time.time()
        summary = json.loads((self.folder / "train.json").read_text())
        self.metrics, self.steps = summary["metrics"], summary["model_version"]
        events = list(read_events(job))
        processor = _processor_seconds() - before
        parts = list(phases(events, began, ended))
        limits = {"train": training_limit(events, processor / (ended - began))}
        for name, seconds in parts:
            records = self.num_records["train" if name == "train" else "val"]
            part = processor * seconds / (ended - began)  # as even as can be told
            records = 0 if name in ("start", "export", "end") else records
            limit = limits.get(name, _LIMITS.get(name, ""))
            self.stages.append(Stage(f"job: {name}", seconds, records, part, limit))

    def _apply(self) -> None:
        shutil.rmtree(self.folder / "predictions", ignore_errors=True)
        common = (*MODEL, "--statistics=statistics.json", "--saved_model=export")
        count = self.num_records["val"]
        words = ["evaluate", *common, "--validation_data=dac/val", "--summary=evaluate.json"]
        self._stage("evaluate", elasticdl(*words), count)
        words = ["predict", *common, "--prediction_data=dac/val", "--output=predictions"]
        self._stage("predict", elasticdl(*words), count)

    def _score(self) -> None:
        """Have TensorFlow alone score records, and compare with what `predict` wrote of them."""
        first = min((self.folder / "dac" / "val").iterdir())
        words = ["data", "convert", str(first), "val.tfrecord", "--overwrite"]
        self._call(elasticdl(*words))
        script = ROOT / "benchmarks" / "peers" / "criteo_serve.py"
        words = [str(script), "export", "val.tfrecord", "scores.npz", f"--records={SCORED}"]
        self._stage("serve", [sys.executable, *words], min(SCORED, self.num_records["val"]))
        scores = np.load(self.folder / "scores.npz")
        predicted = predictions_of(self.folder / "predictions", first, len(scores["logits"]))
        self.num_scored = len(predicted)
        self.difference = float(np.max(np.abs(predicted - scores["logits"])))
        self.served_auc = auc(scores["labels"], scores["logits"])

    # --- running ---------------------------------------------------------------------------------

    def _stage(self, name: str, command: Sequence[str], num_records: int) -> None:
        before, began = _processor_seconds(), time.perf_counter()
        self._call(command)
        seconds = time.perf_counter() - began
        processor = _processor_seconds() - before
        limit = limit_of(processor, seconds)
        self.stages.append(Stage(name, seconds, num_records, processor, limit))

    def _call(self, command: Sequence[str]) -> str:
        print(f"$ {' '.join(command)}", file=sys.stderr, flush=True)
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            cwd=self.folder,
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}")
        return done.stdout.strip()


_LIMITS = {
    "start": "importing TensorFlow and building the model, in each worker",
    "evaluate": "one pass over the validation data, by the workers",
    "export": "writing the SavedModel, in one worker",
    "end": "ending the processes",
}
_PHASES = {"training": "train", "evaluating": "evaluate", "exporting": "export"}


def phases(
    events: Sequence[Mapping[str, Any]], began: float, ended: float
) -> Iterator[tuple[str, float]]:
    """Yield the parts of a training job and their seconds, in order; they add up to its time."""
    trained = [e["time"] for e in events if e["event"] == "progress" and e["num_records"]]
    marks = [("start", began), ("train", min(trained, default=began))]
    for event in sorted(events, key=lambda event: event["time"]):
        if event["event"] == "phase" and event["phase"] in ("evaluating", "exporting"):
            marks.append((_PHASES[event["phase"]], event["time"]))
        elif event["event"] == "ended":
            marks.append(("end", event["time"]))
    marks.append(("", ended))
    for (name, start), (_, end) in itertools.pairwise(marks):
        yield name, max(0.0, end - start)


def training_limit(events: Sequence[Mapping[str, Any]], cores_used: float) -> str:
    """Say what keeps training from being faster: processors, or one stage of the workers.

    The threads of a worker work on different stages at once, so the busiest of them decides, unless
    the processors have no more to give.
    """
    last = {e["index"]: e for e in events if e["event"] == "progress" and e["num_records"]}
    if not last:
        return "too short to tell"
    seconds = {
        name: sum(e["stage_seconds"].get(name, 0.0) for e in last.values()) for name in _STAGES
    }
    busiest = max(seconds, key=lambda name: seconds[name])
    share = seconds[busiest] / max(sum(seconds.values()), 1e-9)
    what = f"{_STAGES[busiest]}, {share:.0%} of what a worker's threads do"
    usable = len(os.sched_getaffinity(0))
    if cores_used > _BUSY * usable:
        return f"the processors ({cores_used:.1f} of {usable} busy); most of it {what}"
    return what


def limit_of(processor_seconds: float, seconds: float) -> str:
    """Say whether a command was kept by the processors."""
    usable = len(os.sched_getaffinity(0))
    used = processor_seconds / max(seconds, 1e-9)
    if used > _BUSY * usable:
        return f"the processors ({used:.1f} of {usable} busy)"
    if used > _BUSY:
        return f"one processor ({used:.1f} of {usable} busy): what is done one after the other"
    return f"disk, or other processes ({used:.1f} of {usable} processors busy)"


def elasticdl(*words: str) -> list[str]:
    """Return a command."""
    return ["elasticdl", *words]


def predictions_of(folder: Path, source: Path, count: int) -> NDArray[np.float32]:
    """Return the predictions of the first records of a source, in their order."""
    found = np.full(count, np.nan, np.float32)
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as part:
            (name,) = set(part.files) - {"source", "record"}
            if Path(str(part["source"])).name == source.name:
                chosen = part["record"] < count
                found[part["record"][chosen]] = part[name][chosen].reshape(-1)
    return found


def auc(labels: NDArray[Any], scores: NDArray[Any]) -> float:
    """Return the area under the ROC curve: the share of pairs that stand in the right order."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    positive = labels == 1
    num_positive = int(positive.sum())
    num_negative = len(labels) - num_positive
    wins = ranks[positive].sum() - num_positive * (num_positive + 1) / 2
    return float(wins / (num_positive * num_negative))


def show(run: Run, is_rehearsal: bool) -> None:
    """Print the stages, the bottleneck and the AUC."""
    grid = Table(title=f"{sum(run.num_records.values()):,} records")
    grid.add_column("stage")
    for column in ("seconds", "records/s", "processor s"):
        grid.add_column(column, justify="right")
    grid.add_column("limited by")
    for stage in run.stages:
        rate = f"{stage.num_records / stage.seconds:,.0f}" if stage.num_records else ""
        processor = f"{stage.processor_seconds:.1f}"
        grid.add_row(stage.name, f"{stage.seconds:.1f}", rate, processor, stage.limit)
    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(grid)
    print(f"bottleneck: {run.bottleneck()}")
    print(f"AUC {run.metrics['auc']:.4f} after {run.steps:,} steps of {MINIBATCH}", end="")
    print(" (of made-up lines: it says nothing of real ones)" if is_rehearsal else "")
    print(f"published, on Criteo's data: {PUBLISHED_AUC} after {PUBLISHED_STEPS:,} steps (xDeepFM)")
    print(
        f"in plain TensorFlow, without elasticdl: AUC {run.served_auc:.4f} of {run.num_scored:,} "
        f"records; logits at most {run.difference:.2g} from those of elasticdl predict"
    )


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
