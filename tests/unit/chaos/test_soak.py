"""A soak that has not tested something says so."""

import random

from scripts.chaos.faults import Struck, Victim
from scripts.chaos.run import Record
from scripts.chaos.soak import KINDS, Deck, not_carried_out, summarise, wrong

TESTED = {"duplicates": 1, "gaps": 2}


def record(*kinds, counters=None, problems=()):
    struck = [Struck(k, 0.5, "training", "kill", (Victim("ps", 0, 1, 1.0),)) for k in kinds]
    return Record(1, "async", {}, struck, 0.0, counters=counters or {}, problems=list(problems))


def test_a_soak_that_has_struck_everything_has_tested_it():
    report = summarise([record(*KINDS, counters=TESTED)])
    assert report["untested"] == report["problems"] == []
    assert report["struck"]["ps"] == KINDS.count("ps")


def test_a_kind_of_fault_that_never_came_is_untested():
    rest = [kind for kind in KINDS if kind != "ps-stop"]
    assert summarise([record(*rest, counters=TESTED)])["untested"] == ["no job has tested ps-stop"]


def test_a_counter_that_stays_zero_is_untested():
    report = summarise([record(*KINDS, counters={**TESTED, "gaps": 0})] * 2)
    assert report["untested"] == ["the counter gaps has stayed 0"]


def test_a_soak_without_counters_is_untested():
    assert "no job has counters" in summarise([record(*KINDS)])["untested"]


def test_a_fault_that_came_too_late_tests_nothing_and_is_no_problem():
    late = record("ps-stop", counters=TESTED, problems=["fault not carried out: ps-stop: late"])
    report = summarise([late])
    assert report["problems"] == []
    assert "no job has tested ps-stop" in report["untested"]
    assert report["not_carried_out"] == 1


def test_other_faults_of_such_a_job_are_tested():
    late = record("ps-stop", "ps", counters=TESTED, problems=["fault not carried out: ps-stop"])
    assert summarise([late])["struck"] == {"ps": 1}
    assert not_carried_out(late) == {"ps-stop"}


def test_any_other_problem_is_one():
    assert wrong(record(problems=["the count of id 7 is 1"])) == ["the count of id 7 is 1"]


def test_every_card_comes_before_any_comes_again():
    deck = Deck("abc", random.Random(0))
    assert sorted(deck.draw() for _ in range(3)) == ["a", "b", "c"]


def test_a_card_that_was_put_back_comes_next():
    deck = Deck("abc", random.Random(0))
    card = deck.draw()
    deck.put_back(card)
    assert deck.draw() == card
