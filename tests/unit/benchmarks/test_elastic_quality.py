"""The report's third experiment: what is run again, and what the curves say."""

import importlib

import pytest

from benchmarks.readme import FOLDER

MODES = ["gang 4", "gang 8", "elastic 4-8"]


@pytest.fixture
def quality(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("elastic_quality")


def curve(quality, mode, last, seed=0):
    return quality.Curve("xdeepfm", mode, seed, [(10, 0.6), (20, last)], 4, 1.0)


def test_a_job_that_was_run_on_the_same_data_is_not_run_again(quality, tmp_path):
    results = quality.Results(tmp_path, "10 lines", MODES)
    results.add(curve(quality, "gang 4", 0.7))

    again = quality.Results(tmp_path, "10 lines", MODES)

    assert again.has("xdeepfm", "gang 4", 0)
    assert not again.has("xdeepfm", "gang 4", 1)
    assert not again.has("xdeepfm", "gang 8", 0)
    assert "gang 8" in (tmp_path / "elastic-quality.svg").read_text()
    again.add(curve(quality, "gang 4", 0.8))  # run again: it stands instead of the other
    assert [found.last for found in quality.Results(tmp_path, "10 lines", MODES).curves] == [0.8]
    assert not quality.Results(tmp_path, "20 lines", MODES).has("xdeepfm", "gang 4", 0)


@pytest.mark.parametrize(("last", "said"), [(0.72, "within"), (0.69, "BELOW")])
def test_elastic_jobs_are_compared_with_the_range_of_the_others(quality, last, said):
    curves = [
        *(curve(quality, "gang 4", auc, seed) for seed, auc in enumerate((0.70, 0.71))),
        curve(quality, "gang 8", 0.73),
    ]
    assert quality.verdicts(curves, MODES) == ["xdeepfm: not run yet: elastic 4-8"]
    (verdict,) = quality.verdicts([*curves, curve(quality, "elastic 4-8", last)], MODES)
    assert f"elastic is {said} the range" in verdict
