"""Makes the tables of `benchmarks/README.md` and `docs/benchmarks.md` from the files in `results/`.

    python -m benchmarks.readme

The script replaces the text between the two marks. People write the text around them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
README = FOLDER / "README.md"
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"

Document = Mapping[str, Any]

# The rows that the README shows of each file; all of them are in `results/`.
SHOWN = {
    "store_job_512_sgd": (
        "elasticdl 2 + 4 against ParameterServerStrategy",
        "elasticdl 2 + 4 against ParameterServerStrategy, pack 10",
        "elasticdl 2 + 4 against compute alone",
        "elasticdl 2 + 4 against Redis mget",
        "elasticdl 1 + 1 against tf.function",
        "elasticdl 1 + 1 against Keras fit parallel",
        "elasticdl 1 + 1 against Keras fit by hand",
    ),
    "store_job_512_adagrad": ("elasticdl 2 + 4 against ParameterServerStrategy",),
    "store_job_512_adam": ("elasticdl 2 + 4 against ParameterServerStrategy",),
    "store_job_4096_sgd": (
        "elasticdl 2 + 4 against ParameterServerStrategy",
        "elasticdl 2 + 4 against compute alone",
        "elasticdl 1 + 1 against tf.function",
    ),
    "store_job_4096_adagrad": ("elasticdl 2 + 4 against ParameterServerStrategy",),
    "store_job_4096_adam": ("elasticdl 2 + 4 against ParameterServerStrategy",),
    "store_job_flights": ("elasticdl 2 + 2, flights against Redis mget, flights",),
    "flights": (
        "1 + 1 against Keras fit from records",
        "1 + 1 against Keras fit by hand",
        "1 + 1 against Keras fit from memory",
        "1 + 2 against Keras fit from memory",
        "1 + 1, hybrid against Keras fit from memory",
    ),
    "threads": (
        "digits, auto, against Keras fit",
        "digits, auto, against Keras fit by hand",
        "flights, auto, against two",
        "Criteo 2 + 4, one thread a worker, against two",
    ),
    "torch_models": (
        "PyTorch: digits, one process, against a plain loop",
        "PyTorch: flights, one process, against a loop with dense gradients",
        "PyTorch: flights, one process, --torch_compile, against a loop with dense gradients",
        "PyTorch: flights, 1 worker + 1 ps replica, against a loop with dense gradients",
        "PyTorch: ten million ids, 1 worker + 1 ps replica, against a loop with sparse gradients",
    ),
    "store": (
        "pull: 10 M x 16 adagrad, uniform (fast hash map)",
        "push: 10 M x 16 adagrad, uniform (fast hash map)",
        "f_mem pull: 10 M x 16 adagrad, uniform",
        "f_mem push: 10 M x 16 adagrad, uniform",
        "insert: 4 M x 16 adagrad, uniform",
        "checkpoint restored",
        "pushes while a checkpoint is written (alone)",
        "f_wire pull, 65,536 keys, dim 8 (echo)",
        "f_wire push, 65,536 keys, dim 8 (echo)",
        "f_e2e: PsClient.pull, 65536 unique ids, dim 8 (echo)",
        "f_tls, pull of 1 MB (clear text)",
    ),
    "allreduce": (
        "2 ranks, 1 MB: TCP (gloo)",
        "2 ranks, 100 MB: TCP (gloo)",
        "2 ranks, 100 MB: shared memory (gloo)",
        "4 ranks, 100 MB: TCP (gloo)",
        "4 ranks, 100 MB: shared memory (gloo)",
    ),
    "allreduce_recovery": (
        "kill -9: to the next step of the others; of torchrun: of all",
        "leave: time without steps",
        "join: time without steps",
    ),
    "recordio": (
        "read RecordIO, against TFRecord as tensors",
        "read RecordIO zstd, against TFRecord gzip as tensors",
        "write RecordIO, one by one",
    ),
    "ledger": (
        "lease + report, journal in memory, against queue.Queue.get",
        "lease + report, journal in SQLite, against two bare INSERTs",
    ),
    "members": (
        "1,000 members, 1,000,000 tasks: processor",
        "1,000 members, 1,000,000 tasks: 99 % of calls answered in",
        "1,000 members, 1,000,000 tasks: the event loop was held, at most",
    ),
    "master": (
        "the master's processor: a lease and a report in one call, or two",
        "the master's processor: a heartbeat",
    ),
    "connections": ("1,000 clients against 8: memory", "1,000 clients against 8: p99"),
    "simulate": (
        "make chaos, 3 workers killed",
        "flights, 1 worker, 1 ps replica, at its own costs",
        "flights, 4 workers, 1 ps replica, at its own costs",
    ),
}

# The ten lines of `docs/benchmarks.md`: what is compared, the file, and the row in it. Among them
# are comparisons that we lose.
TEN = (
    (
        "a DeepFM of Criteo's shape, 2 workers and 4 ps replicas, beside TensorFlow's "
        "`ParameterServerStrategy`",
        "store_job_512_sgd",
        "elasticdl 2 + 4 against ParameterServerStrategy",
    ),
    (
        "the same, 1 worker and 1 ps replica, beside Keras `fit` with parallel calls",
        "store_job_512_sgd",
        "elasticdl 1 + 1 against Keras fit parallel",
    ),
    (
        "the same, beside what the cores compute with everything in memory",
        "store_job_512_sgd",
        "elasticdl 2 + 4 against compute alone",
    ),
    (
        "flights, 1 worker and 1 ps replica, beside Keras `fit` from minibatches held in memory",
        "flights",
        "1 + 1 against Keras fit from memory",
    ),
    (
        "flights in PyTorch, one process, beside a plain loop",
        "torch_models",
        "PyTorch: flights, one process, against a loop with dense gradients",
    ),
    (
        "digits, a dense model, one process, beside Keras `fit`",
        "threads",
        "digits, auto, against Keras fit",
    ),
    (
        "a worker of three is killed: to the next step of the others, beside `torchrun`",
        "allreduce_recovery",
        "kill -9: to the next step of the others; of torchrun: of all",
    ),
    (
        "all-reduce of 100 MB between 4 ranks over TCP, beside gloo",
        "allreduce",
        "4 ranks, 100 MB: TCP (gloo)",
    ),
    (
        "reading record files, beside TensorFlow's TFRecord",
        "recordio",
        "read RecordIO, against TFRecord as tensors",
    ),
    (
        "the master's leases with a journal in SQLite, beside two bare INSERTs",
        "ledger",
        "lease + report, journal in SQLite, against two bare INSERTs",
    ),
)


def main() -> None:
    """Write both tables anew."""
    documents = read(FOLDER / "results")
    for path, made in ((README, results(documents)), (PAGE, summary(documents))):
        path.write_text(replaced(path.read_text(), made))
        print("written:", path)


def read(folder: Path) -> dict[str, Document]:
    """Return the result files by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def replaced(text: str, lines: str) -> str:
    """Return a text with other lines between the marks."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"expected {BEGIN} and then {END} in the page")
    return f"{before}{BEGIN}\n{lines}\n{END}{after}"


def results(documents: Mapping[str, Document]) -> str:
    """Return the table of the README as Markdown.

    Raises:
        KeyError: A file lacks a row that is to be shown.
    """
    lines = [
        "| file of `results/` | what | ours | theirs | unit | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for name, shown in SHOWN.items():
        document = documents[name]
        rows = {row["what"]: row for row in document["rows"]}
        first = f"`{name}`, {document['date'][:10]}"
        for what, place in zip(shown, (first, *[""] * len(shown)), strict=False):
            lines.append(f"| {place} | {what} | " + " | ".join(_cells(rows[what])) + " |")
    lines += [f"| {name} | {what} | | | | |" for name, what in _quality(documents)]
    return "\n".join(lines)


def summary(documents: Mapping[str, Document]) -> str:
    """Return the ten lines of `docs/benchmarks.md` as Markdown.

    Raises:
        KeyError: There is no such row.
    """
    lines = ["| what, beside what | ours | theirs | ratio |", "|---|---|---|---|"]
    for words, name, what in TEN:
        rows = {row["what"]: row for row in documents[name]["rows"]}
        ours, theirs, unit, ratio = _cells(rows[what])
        lines.append(f"| {words} | {ours} | {theirs} {unit} | **{ratio}** |")
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    best, ratio = row["best"], row["ratio"]
    theirs = figure(best["peer"]) if "peer" in best else ""
    return figure(best["ours"]), theirs, row["unit"], "" if ratio is None else times(ratio)


def _quality(documents: Mapping[str, Document]) -> Iterator[tuple[str, str]]:
    """Yield what the reports say that compare no rates."""
    if "criteo_rehearsal" in documents:
        run = documents["criteo_rehearsal"]
        train = next(stage for stage in run["stages"] if stage["name"] == "job: train")
        yield (
            "`criteo_rehearsal`",
            f"{sum(run['records'].values()):,} made-up lines in "
            f"{sum(stage['seconds'] for stage in run['stages']):,.0f} s, training "
            f"{train['seconds']:,.0f} s of them; AUC {run['metrics']['auc']:.4f}, in plain "
            f"TensorFlow {run['auc in plain TensorFlow']:.4f}",
        )
    if "zoo" in documents:
        verdicts = [v for v in documents["zoo"]["verdicts"] if v["is_as_good"] is not None]
        below = [v for v in verdicts if not v["is_as_good"]]
        told = "; ".join(
            f"{v['model']} by {v['strategy']} has {v['job']:.3f} of {v['plain']:.3f}" for v in below
        )
        yield (
            "`zoo`",
            f"{len(verdicts) - len(below)} of {len(verdicts)} jobs are as good as plain training"
            + (f"; {told}" if told else ""),
        )


def times(ratio: float) -> str:
    """Return a ratio as it is read."""
    return f"{ratio:.0f}x" if ratio >= 20 else f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def figure(value: float) -> str:
    """Return three digits of a number, or all that are before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
