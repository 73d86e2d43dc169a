"""Makes `benchmarks/README.md`, `docs/benchmarks.md` and pictures from the files in `results/`.

    python -m benchmarks.readme

What a person has written stands around the two marks; what is between them is replaced. The picture
shows for each job where the time of a worker's step goes, thread by thread. A second picture shows
how fast the same job is with each optimisation switched off.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.readme_reports import reports
from benchmarks.summary import PAGE, summary
from elasticdl.observe.svg import box, line, svg, text

FOLDER = Path(__file__).parent
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
PICTURE = "results/stages.svg"
ABLATION, ABLATION_PICTURE = "ablation", "results/ablation.svg"
STAGES_NOTE = "microseconds a record by stage"

Document = Mapping[str, Any]

# Whole jobs come first, then the parts; a file that is not named here comes last.
JOBS = {
    "store_job_512_sgd": "Criteo-shaped DeepFM, batch 512, SGD",
    "store_job_512_adagrad": "Criteo-shaped DeepFM, batch 512, Adagrad",
    "store_job_512_adam": "Criteo-shaped DeepFM, batch 512, Adam",
    "store_job_4096_sgd": "Criteo-shaped DeepFM, batch 4096, SGD",
    "store_job_4096_adagrad": "Criteo-shaped DeepFM, batch 4096, Adagrad",
    "store_job_4096_adam": "Criteo-shaped DeepFM, batch 4096, Adam",
    "store_job_flights": "Flights, Adagrad, against Redis",
    "flights": "Flights beside Keras `fit`",
    "threads": "Threads of a worker",
    "torch_models": "Models in PyTorch and Keras beside plain loops",
}
PARTS = {
    ABLATION: "What each optimisation is worth",
    "store": "The parameter store and its wire",
    "allreduce": "All-reduce against gloo",
    "allreduce_recovery": "All-reduce when workers are killed, leave and join",
    "allreduce_join": "All-reduce when a worker joins a large model",
    "ray_preemption": "Minibatches computed again when workers on Ray are preempted",
    "model_servers": "A tower on model servers beside the same in each worker",
    "recordio": "Record files",
    "data_formats": "Formats of data, by processor time",
    "feed_paths": "The whole job by the path of its records",
    "ledger": "The master's ledger",
    "members": "The master with many members",
    "page": "The page of a job with many members",
    "simulate": "The simulator of cost: predicted (ours) beside measured (peer)",
}


def main() -> None:
    """Write both files anew."""
    documents = read(FOLDER / "results")
    (FOLDER / PICTURE).write_text(picture(documents))
    path = FOLDER / "README.md"
    path.write_text(replaced(path.read_text(), made(FOLDER / "results")))
    PAGE.write_text(replaced(PAGE.read_text(), summary(documents)))
    written = [path, PAGE, FOLDER / PICTURE]
    if ABLATION in documents:
        written.append(FOLDER / ABLATION_PICTURE)
        written[-1].write_text(ablation_picture(documents[ABLATION]))
    print("written:", ", ".join(map(str, written)))


def made(folder: Path) -> str:
    """Return all that stands between the marks."""
    return f"{results(read(folder))}\n{reports(folder)}"


def read(folder: Path) -> dict[str, Document]:
    """Return the result files of comparisons by name: those with rows."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: document for name, document in found.items() if "rows" in document}


def replaced(text: str, lines: str) -> str:
    """Return a text with other lines between the marks."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"expected {BEGIN} and then {END} in the page")
    return f"{before}{BEGIN}\n{lines}\n{END}{after}"


# --- tables ---------------------------------------------------------------------------------------


def results(documents: Mapping[str, Document]) -> str:
    """Return the tables, whole jobs first, as Markdown."""
    others = {name: name for name in documents if name not in {**JOBS, **PARTS}}
    lines = [
        "The best of the runs is compared, with medians in brackets; where less is better, the "
        "worst is there as well. A ratio above 1 means that ours is better.",
        "",
        "### Whole jobs",
        "",
        *_table((title, documents[name]) for name, title in JOBS.items() if name in documents),
        "",
        f"![Where the time of a step goes]({PICTURE})",
    ]
    for name, title in {**PARTS, **others}.items():
        if name in documents:
            document = documents[name]
            lines += ["", f"### {title}", "", f"{_when(document)}.", ""]
            lines += _table([("", document)])
            if name == ABLATION:
                lines += ["", f"![The same job with each switched off]({ABLATION_PICTURE})"]
    return "\n".join(lines)


def _table(parts: Any) -> Iterator[str]:
    yield "| what | ours | peer | ratio | unit | runs of each |"
    yield "|---|---|---|---|---|---|"
    for title, document in parts:
        if title:
            yield f"| **{title}** ({_when(document)}) | | | | | |"
        for row in document["rows"]:
            yield "| " + " | ".join(_cells(row)) + " |"


def _when(document: Document) -> str:
    load = document["machine"]["load_average"][0]
    return f"{document['date'][:10]}, {document['machine']['cores']} cores, load {load:.1f}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    runs = row["runs"]
    return [
        row["what"].replace("|", "/"),
        _side(row, "ours"),
        _side(row, "peer") if "peer" in runs else "",
        _ratio(row),
        row["unit"],
        str(len(runs["ours"])),
    ]


def _side(row: Mapping[str, Any], side: str) -> str:
    best, median, runs = row["best"][side], row["median"][side], row["runs"][side]
    text = f"{figure(best)} ({figure(median)})"
    return text if is_higher_better(row) else f"{text}, worst {figure(max(runs))}"


def is_higher_better(row: Mapping[str, Any]) -> bool:
    """Tell from a row's runs which way its figure goes; of equal ones it does not matter."""
    return all(row["best"][side] == max(runs) for side, runs in row["runs"].items())


def _ratio(row: Mapping[str, Any]) -> str:
    if row["ratio"] is None:
        return ""
    median = row["median"]["ours"] / row["median"]["peer"]
    median = median if is_higher_better(row) else 1 / median
    return f"{times(row['ratio'])} ({times(median)})"


def times(ratio: float) -> str:
    """Return a ratio as it is read."""
    return f"{ratio:.0f}x" if ratio >= 20 else f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def figure(value: float) -> str:
    """Return three digits of a number, or all that are before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


# --- the picture ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lane:
    """One thread of a worker: what it does, stage by stage."""

    name: str
    stages: tuple[str, ...]


LANES = (
    Lane("read, feed", ("feed", "lease")),
    Lane("ids, pull", ("ids", "pull", "staleness wait")),
    Lane("compute", ("compute", "reduce", "compute wait")),
    Lane("push, report", ("push", "report")),
)
_COLOURS = {
    "feed": "#4c78a8",
    "lease": "#9ecae9",
    "ids": "#f58518",
    "pull": "#ffbf79",
    "compute": "#54a24b",
    "reduce": "#9ac794",
    "push": "#b279a2",
    "report": "#d6a5c9",
    "staleness wait": "#e8e8e8",
    "compute wait": "#e8e8e8",
}
_LEFT, _WIDTH, _LANE, _GAP = 130, 720, 16, 40
_SWITCHES = 330


def picture(documents: Mapping[str, Document]) -> str:
    """Return an SVG: for each job the four threads of a worker beside what a record takes."""
    jobs = [
        (f"{title}: {job}", stages)
        for name, title in JOBS.items()
        if name in documents
        for job, stages in documents[name]["notes"].get(STAGES_NOTE, {}).items()
    ]
    height = _GAP + len(jobs) * (len(LANES) * _LANE + _GAP)
    parts = [_legend()]
    for number, (title, stages) in enumerate(jobs):
        top = _GAP + number * (len(LANES) * _LANE + _GAP)
        parts += _job(title.replace("`", ""), stages, top + 12)
    return svg(parts, _LEFT + _WIDTH + 20, height)


def _legend() -> str:
    shown = {**_COLOURS, "waits": "#e8e8e8"}
    names = [name for name in shown if not name.endswith(" wait")]
    return "".join(
        box(10 + 95 * place, 8, 12, 12, shown[name]) + text(27 + 95 * place, 18, name)
        for place, name in enumerate(names)
    )


def _job(title: str, stages: Mapping[str, float], top: int) -> Iterator[str]:
    elapsed = stages["elapsed"]
    yield text(10, top - 4, f"{title}, {elapsed:.1f} us a record of one worker", is_bold=True)
    # Threads run beside each other: none is much longer than what elapses.
    lengths: Sequence[float] = [sum(stages.get(s, 0) for s in lane.stages) for lane in LANES]
    scale = _WIDTH / max(elapsed, *lengths)
    for number, lane in enumerate(LANES):
        y, x = top + number * _LANE, float(_LEFT)
        yield text(10, y + 12, lane.name)
        for stage in lane.stages:
            width = stages.get(stage, 0.0) * scale
            hint = f"{stage}: {stages.get(stage, 0.0):.1f} us"
            yield box(x, y + 1, width, _LANE - 3, _COLOURS[stage], hint)
            x += width
    x = _LEFT + elapsed * scale
    bottom = top + len(LANES) * _LANE
    yield line(x, top, x, bottom)


def ablation_picture(document: Document) -> str:
    """Return an SVG: records/s with all optimisations, and with each switched off, for each job."""
    rows = document["rows"]
    scale = _WIDTH * 0.7 / max(max(row["best"].values()) for row in rows)
    parts: list[str] = []
    y, before = _LANE // 2, ""
    for row in rows:
        job, _, switch = row["what"].partition(": ")
        with_it, without = row["best"]["ours"], row["best"]["peer"]
        if job != before:
            parts.append(text(10, y + _LANE, job, is_bold=True))
            parts += _bar(y + _LANE + 4, "as it is", with_it, scale)
            y, before = y + 2 * _LANE + 4, job
        parts += _bar(y, f"without {switch}", without, scale, f", {times(with_it / without)} with")
        y += _LANE
    return svg(parts, _SWITCHES + _WIDTH, y + _LANE // 2)


def _bar(y: int, name: str, rate: float, scale: float, more: str = "") -> Iterator[str]:
    yield text(10, y + 12, name)
    colour = _COLOURS["feed" if more else "compute"]
    yield box(_SWITCHES, y + 1, rate * scale, _LANE - 3, colour)
    yield text(_SWITCHES + round(rate * scale) + 6, y + 12, f"{figure(rate)}{more}")


if __name__ == "__main__":
    main()
