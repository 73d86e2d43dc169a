"""What a pause is put down to: what was done by whom all others waited for."""

import pytest

from benchmarks.join_path import OTHER, Interval, merged, slowest_path


def seconds(shares):
    return {what: round(share.seconds, 6) for what, share in shares.items()}


def test_time_in_which_others_are_waited_for_is_that_of_the_last_to_come():
    quick = [
        Interval("compute", "", 10.0, 11.0),
        Interval("reduction", "w1", 11.0, 15.5),
        Interval("update", "", 15.5, 16.0),
    ]
    slow = [
        Interval("copy", "", 10.0, 12.0),
        Interval("compute", "", 12.0, 15.0),
        Interval("reduction", "w1", 15.0, 15.5),
        Interval("update", "", 15.5, 17.0),
    ]
    found = slowest_path({"quick": quick, "slow": slow}, "quick", since=10.0, until=16.0)
    assert seconds(found) == {"copy": 2.0, "compute": 3.0, "reduction": 0.5, "update": 0.5}


def test_all_of_the_time_is_put_down_to_something():
    worker = [Interval("compute", "", 1.0, 2.0), Interval("update", "", 2.5, 3.0)]
    found = slowest_path({"one": worker}, "one", since=0.0, until=3.25)
    assert seconds(found) == {"compute": 1.0, "update": 0.5, OTHER: 1.75}


def test_an_interval_is_cut_off_where_the_pause_begins_with_its_processor_time():
    worker = [Interval("update", "", 0.0, 4.0, processor=2.0, faults=40)]
    (share,) = slowest_path({"one": worker}, "one", since=3.0, until=4.0).values()
    assert (share.seconds, share.processor, share.faults) == (1.0, 0.5, 10.0)


def test_several_pauses_are_shown_by_their_means_and_the_longest_first():
    worker = [Interval("a", "", 0.0, 1.0), Interval("b", "", 1.0, 4.0)]
    paths = [slowest_path({"one": worker}, "one", 0.0, until) for until in (1.0, 4.0)]
    found = merged(paths)
    assert list(found) == ["b", "a"]
    assert found["b"]["seconds"] == pytest.approx(1.5)
    assert found["a"]["seconds"] == pytest.approx(1.0)
