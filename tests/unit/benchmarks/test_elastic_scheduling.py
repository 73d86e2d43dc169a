"""What the experiments with elastic jobs are judged by, of pods whose times are given."""

from xml.etree import ElementTree

import pytest

from benchmarks.elastic_scheduling import colocation, figures, overlap
from benchmarks.elastic_scheduling.jobs import Work
from benchmarks.elastic_scheduling.trace import (
    FOREVER,
    PodTimes,
    Span,
    first_reached,
    held,
    mean_cpus,
    series,
    steps,
)


def pod(group, running, ended=FOREVER, cpus=1.0, role="worker", created=None):
    begin = running - 1 if created is None else created
    return PodTimes(f"{group}-{running}", group, role, cpus, begin, begin, running, ended)


def test_cpus_are_held_from_the_start_of_a_process_to_its_end():
    spans = held([pod("a", 10, 30), pod("a", 20, 40, cpus=2), PodTimes("b", "b", "", 1.0, 0.0)])
    assert mean_cpus(spans, 0, 50) == pytest.approx((20 + 40) / 50)
    assert mean_cpus(spans, 25, 35) == pytest.approx((5 + 20) / 10)
    assert series(spans, 0, 40, seconds=20) == [[0, 0.5], [20, 2.5]]


def test_freed_cpus_are_used_again_when_all_are_held():
    spans = [Span(0, 10, 2.0), Span(0, 99, 2.0), Span(13, 99, 1.0), Span(15, 99, 1.0)]
    assert first_reached(spans, 4, after=10) == 15
    assert first_reached(spans, 3, after=10) == 13
    assert first_reached(spans, 4, after=5) == 5
    assert first_reached(spans, 5, after=10) == FOREVER


def test_steps_are_read_and_a_line_that_was_cut_is_none(tmp_path):
    (tmp_path / "one").write_text("1.0 2.0\n2.0 3.5\n3.")
    (tmp_path / "two").write_text("1.0 1.5\n")
    assert steps(tmp_path, 2.0) == [Span(1, 1.5, 2), Span(1, 2, 2), Span(2, 3.5, 2)]


def test_an_overlap_tells_when_each_job_came_first_to_a_step():
    work = Work(num_steps=4, num_workers=1, params="", cpus="1")
    times = {
        "first": overlap.JobTimes(100, 100, 140, 0),
        "second": overlap.JobTimes(110, 141, 180, 0),
    }
    pods = [pod("first", 102, 140), pod("second", 143, 180)]
    spans = {"first": [Span(103, 104, 1.0)], "second": [Span(144, 145, 1.0)]}
    found = overlap._measure(overlap.Case(work, unit=1.0, later=10), times, pods, spans)
    assert found["seconds"] == 80
    second = found["jobs"]["second"]
    assert second["seconds from submit to the first finished minibatch"] == 35
    assert second["seconds from the first pod placed to it"] == 3
    assert second["seconds from admission to it"] == 4
    held_seconds = 38 + 37
    used = found["mean utilisation, of pods that run"]
    assert used == pytest.approx(held_seconds / 80 / overlap.UNITS)


def test_a_service_beside_a_job_is_measured_at_each_change():
    changes = [colocation.Change(10, 1, 2), colocation.Change(30, 2, 1)]
    pods = [
        pod("service", 0, 200, cpus=2, role=""),
        pod("service", 13, 31, cpus=2, role="", created=10.5),
        *[pod("training", 0, 200) for _ in range(20)],
        *[pod("training", 0, 12) for _ in range(2)],
        *[pod("training", 33 + number, 200) for number in range(2)],
    ]
    found = colocation.measure(pods, [], changes, begin=5, end=50)
    assert found["seconds until a service replica runs"] == [3]
    assert found["seconds until freed CPUs are used again"] == [3]
    assert found["workers that were preempted or replaced"] == 2
    free = 2 * 1 + 2 * 2 + 1 * 1  # between 12 and 13; between 31 and 33; and one more second of one
    assert found["mean utilisation, of pods that run"] == pytest.approx(1 - free / 45 / 24)
    assert found["least utilisation in a second"] == pytest.approx(22 / 24)


def test_the_figures_are_xml():
    mode = {"seconds": 2.0, "mean utilisation, of pods that run": 0.5}
    mode["units held"] = {"first": [[0, 13.0], [1, 0.0]], "second": [[0, 11.0], [1, 13.0]]}
    root = ElementTree.fromstring(figures.overlap("a < b", {"gang": mode, "elastic": mode}, 24))
    assert len([e for e in root.iter() if e.tag.endswith("rect")]) == 1 + 2 + 2 * 3
    found = {"seconds": 1.0, "mean utilisation, of pods that run": 1.0}
    found["CPUs held"] = {"service": [[0, 4.0]], "training": [[0, 20.0]]}
    ElementTree.fromstring(figures.colocation("title", found, 24))
