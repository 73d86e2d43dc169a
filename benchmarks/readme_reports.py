"""What `benchmarks/README.md` shows of reports that compare no rates: quality, and Criteo's run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]


def reports(folder: Path) -> str:
    """Return the sections of those reports that were made, as Markdown."""
    lines: list[str] = []
    for name, section in _SECTIONS.items():
        path = folder / f"{name}.json"
        if path.exists():
            lines += ["", *section(json.loads(path.read_text()))]
    return "\n".join(lines)


def _criteo(document: Document) -> Iterator[str]:
    total = sum(document["records"].values())
    yield f"### From raw lines to a served model: {total:,} made-up lines"
    yield ""
    yield f"{_machine(document)}. Bottleneck: {document['bottleneck']}."
    yield ""
    yield "| stage | seconds | records/s | processor seconds | limited by |"
    yield "|---|---|---|---|---|"
    for stage in document["stages"]:
        records = stage["num_records"]
        rate = f"{records / stage['seconds']:,.0f}" if records else ""
        times = f"{stage['seconds']:.1f} | {rate} | {stage['processor_seconds']:.1f}"
        yield f"| {stage['name']} | {times} | {stage['limit']} |"
    yield ""
    yield (
        f"AUC {document['metrics']['auc']:.4f} after {document['steps']:,} steps (of made-up "
        f"lines: it says nothing of real ones), {document['auc in plain TensorFlow']:.4f} in plain "
        f"TensorFlow; logits differ by {document['largest difference of a logit']:.2g} at most."
    )


def _zoo(document: Document) -> Iterator[str]:
    yield "### Quality of the model zoo"
    yield ""
    yield (
        f"{_machine(document)}. A job is as good as plain training when it is below the mean of "
        "the seeds by no more than 0.002 or two of their standard deviations. What is empty was "
        "not run."
    )
    yield ""
    yield "| model | by | strategy | metric | job | plain, one process (seeds) | linear | |"
    yield "|---|---|---|---|---|---|---|---|"
    for verdict in document["verdicts"]:
        yield "| " + " | ".join(_cells(verdict)) + " |"


def _cells(verdict: Mapping[str, Any]) -> list[str]:
    plain = verdict["plain"]
    spread = verdict["stddev"]
    words = {True: "as good as plain", False: "**below plain**", None: ""}
    linear = {True: "better than linear", False: "**not better than linear**", None: ""}
    said = [words[verdict["is_as_good"]], linear[verdict["beats_linear"]]]
    if verdict["is_tiny"]:
        said.append("tiny data")
    return [
        verdict["model"],
        verdict["framework"],
        verdict["strategy"].removesuffix("Strategy"),
        verdict["metric"],
        f"{verdict['job']:.4f}",
        ""
        if plain is None
        else f"{plain:.4f}"
        + ("" if spread is None else f" ± {spread:.4f}")
        + f" ({verdict['num_seeds']})",
        "" if verdict["linear"] is None else f"{verdict['linear']:.4f}",
        ", ".join(filter(None, said)),
    ]


def _elastic(document: Document) -> Iterator[str]:
    yield "### AUC of jobs whose workers come and go"
    yield ""
    options = "".join(f"; {m} with `{' '.join(o)}`" for m, o in document["options"].items() if o)
    yield f"{_machine(document)}. {document['data']}; AUC after the last update{options}."
    yield ""
    yield "| model | workers | mean | range of the seeds | seeds |"
    yield "|---|---|---|---|---|"
    last: dict[tuple[str, str], list[float]] = {}
    for curve in document["curves"]:
        last.setdefault((curve["model"], curve["mode"]), []).append(curve["points"][-1][1])
    for (model, mode), values in last.items():
        mean = f"{statistics.fmean(values):.4f}"
        span = f"{min(values):.4f} to {max(values):.4f}"
        yield f"| {model} | {mode} | {mean} | {span} | {len(values)} |"
    yield ""
    yield from (f"- {verdict}." for verdict in document["verdicts"])
    yield ""
    yield "![AUC over updates](../docs/figures/elastic-quality.svg)"


_SECTIONS = {"criteo_rehearsal": _criteo, "zoo": _zoo, "elastic_quality": _elastic}


def _machine(document: Document) -> str:
    here = document["machine"]
    return f"{here['cores']} cores, load {here['load_average'][0]:.1f}"
