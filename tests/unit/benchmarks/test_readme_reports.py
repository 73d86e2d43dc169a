"""Reports of quality, and of Criteo's run, as tables of the README."""

import json

from benchmarks.readme_reports import reports

MACHINE = {"cores": 2, "load_average": [0.5]}
VERDICT = {
    "model": "adult",
    "framework": "keras",
    "strategy": "ParameterServerStrategy",
    "metric": "auc",
    "job": 0.9,
    "plain": 0.91,
    "stddev": 0.001,
    "num_seeds": 5,
    "linear": 0.8,
    "is_as_good": False,
    "beats_linear": True,
    "is_tiny": False,
}


def made(folder, name, **document):
    (folder / f"{name}.json").write_text(json.dumps({"machine": MACHINE, **document}))
    return reports(folder).splitlines()


def test_what_was_not_made_is_left_out(tmp_path):
    assert reports(tmp_path) == ""


def test_a_job_below_plain_training_is_told(tmp_path):
    lines = made(
        tmp_path, "zoo", verdicts=[VERDICT, {**VERDICT, "plain": None, "is_as_good": None}]
    )
    start = "| adult | keras | ParameterServer | auc | 0.9000 |"
    assert lines[-2:] == [
        f"{start} 0.9100 ± 0.0010 (5) | 0.8000 | **below plain**, better than linear |",
        f"{start}  | 0.8000 | better than linear |",
    ]


def test_stages_of_criteos_run_have_their_rates(tmp_path):
    stage = {"name": "convert", "seconds": 2, "num_records": 500_000}
    more = {"processor_seconds": 3.5, "limit": "the processors"}
    lines = made(
        tmp_path,
        "criteo_rehearsal",
        records={"train": 400_000, "val": 100_000},
        bottleneck="convert",
        stages=[{**stage, **more}],
        metrics={"auc": 0.7},
        steps=10,
        **{"auc in plain TensorFlow": 0.7, "largest difference of a logit": 0.0},
    )
    assert "| convert | 2.0 | 250,000 | 3.5 | the processors |" in lines
    assert "500,000 made-up lines" in lines[1]


def test_seeds_of_elastic_jobs_have_their_range(tmp_path):
    curves = [
        {"model": "xdeepfm", "mode": "gang 4", "points": [[10, 0.6], [20, auc]]}
        for auc in (0.70, 0.72)
    ]
    document = {"data": "10 lines", "options": {"lr": [], "xdeepfm": ["--max_staleness=8"]}}
    document |= {"curves": curves, "verdicts": ["as good"]}
    lines = made(tmp_path, "elastic_quality", **document)
    said = "10 lines; AUC after the last update; xdeepfm with `--max_staleness=8`."
    assert any(said in line for line in lines)
    assert "| xdeepfm | gang 4 | 0.7100 | 0.7000 to 0.7200 | 2 |" in lines
    assert lines[-3:] == [
        "- as good.",
        "",
        "![AUC over updates](../docs/figures/elastic-quality.svg)",
    ]
