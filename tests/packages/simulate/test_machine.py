"""Cores are shared between processes, then between threads, and no work is made or lost."""

import pytest

from elasticdl.packages.simulate.machine import Actor, Agenda, Machine, rates_of


def test_processes_share_cores_equally_and_threads_by_weight():
    rates = rates_of({"worker": [1.0, 0.5, 0.5], "ps": [1.0]}, cores=2)
    assert rates == {"worker": [0.5, 0.25, 0.25], "ps": [1.0]}


def test_what_a_process_cannot_use_goes_to_others():
    rates = rates_of({"a": [1.0, 1.0, 1.0], "b": [1.0], "c": [1.0]}, cores=4)
    assert sum(sum(of) for of in rates.values()) == pytest.approx(4)
    assert rates["b"] == rates["c"] == [1.0]
    assert rates["a"] == pytest.approx([2 / 3] * 3)


def test_two_that_share_a_core_take_twice_as_long():
    agenda, ended = Agenda(), {}
    machine = Machine(agenda, cores=1)
    for name, seconds in (("short", 1.0), ("long", 3.0)):
        machine.work(seconds)(Actor(name), lambda name=name: ended.setdefault(name, agenda.now))
    agenda.run(lambda: False)
    assert ended == {"short": pytest.approx(2.0), "long": pytest.approx(4.0)}
    assert machine.worked == pytest.approx(4.0)


def test_work_of_one_that_was_ended_is_not_done_and_leaves_its_core():
    agenda, ended = Agenda(), []
    machine, dead = Machine(agenda, cores=1), Actor("dead")
    machine.work(5.0)(dead, lambda: ended.append("dead"))
    machine.work(2.0)(Actor("alive"), lambda: ended.append(agenda.now))
    agenda.at(1.0, lambda: machine.end(dead))
    agenda.run(lambda: False)
    assert ended == [pytest.approx(2.5)]
