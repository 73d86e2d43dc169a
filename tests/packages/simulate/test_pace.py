"""A simulated job trains each minibatch once, and is as fast as what bounds it lets it be."""

import itertools
from dataclasses import replace

import pytest

from elasticdl.packages.simulate.cluster import GIGABIT, Cluster
from elasticdl.packages.simulate.costs import Costs
from elasticdl.packages.simulate.pace import Death, records_per_second, run

COSTS = Costs(
    model="a model",
    minibatch_size=100,
    minibatches_per_task=10,
    feed=1e-3,
    prepare=0.5e-3,
    compute=2e-3,
    commit=0.5e-3,
    ps=0.5e-3,
    master=1e-3,
    bytes_pushed=100_000,
    bytes_pulled=50_000,
    record_bytes=200,
)
FOUR = Cluster(workers=4, ps=2)
"""Where nothing bounds but computing."""


def test_every_minibatch_is_trained_once_whoever_dies():
    deaths = [Death(100, 0), Death(101, 0), Death(300, 2)]
    costs = replace(COSTS, start=0.1)
    for cluster in (FOUR, replace(FOUR, shared_cores=2.0)):
        trace = run(costs, cluster, 500, deaths)
        assert len(trace.trained) == 500
        assert trace.trained == sorted(trace.trained)
        assert 0 < trace.lost < 60
        assert trace.fed == 500 + trace.lost
        assert trace.computed <= trace.fed


def test_a_run_can_be_had_again():
    assert run(COSTS, FOUR, 200, seed=3).trained == run(COSTS, FOUR, 200, seed=3).trained
    assert run(COSTS, FOUR, 200, seed=3).trained != run(COSTS, FOUR, 200, seed=4).trained


def test_a_worker_with_cores_enough_is_as_fast_as_its_slowest_thread():
    found = records_per_second(COSTS, Cluster(workers=1, ps=1))
    assert found == pytest.approx(100 / 2e-3, rel=0.03)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_full_machine_trains_what_its_cores_can_do(workers):
    found = records_per_second(COSTS, Cluster(workers=workers, ps=1, shared_cores=1.0))
    assert found == pytest.approx(100 / COSTS.per_minibatch, rel=0.03)


def test_threads_of_a_worker_with_few_cores_share_them():
    found = records_per_second(COSTS, replace(FOUR, workers=1, worker_cores=1.0))
    assert found == pytest.approx(100 / 4e-3, rel=0.03)


LIMITS = {
    "input_bandwidth": 2e6,  # of 100 records of 200 bytes: 100 minibatches/s
    "ps_network": 100 * 150_000 / 2,  # both ways; the way in, with 100,000 of them, is the slower
    "worker_network": 100 * 100_000 / 4,
}


@pytest.mark.parametrize("name", LIMITS)
def test_no_more_goes_through_than_there_is_room_for(name):
    narrow = replace(FOUR, **{name: LIMITS[name]})
    bound = {"input_bandwidth": 100, "ps_network": 150, "worker_network": 100}[name]
    assert records_per_second(COSTS, narrow) == pytest.approx(100 * bound, rel=0.05)


def test_the_ps_replicas_and_the_master_do_no_more_than_their_cores_can():
    slow_ps = replace(FOUR, ps_cores=1.0, ps_speed=0.05)
    assert records_per_second(COSTS, slow_ps) == pytest.approx(100 * 2 * 0.05 / 0.52e-3, rel=0.06)
    slow_master = replace(FOUR, master_speed=0.02)
    assert records_per_second(COSTS, slow_master) == pytest.approx(100 * 10 * 20, rel=0.1)


def test_more_workers_and_faster_parts_never_make_it_slower():
    speeds = [records_per_second(COSTS, replace(FOUR, workers=n)) for n in (1, 2, 4, 8, 16)]
    assert all(more > 0.98 * fewer for fewer, more in itertools.pairwise(speeds))
    for name in ("ps_network", "worker_network"):
        few = [records_per_second(COSTS, replace(FOUR, **{name: n * GIGABIT / 4})) for n in (1, 4)]
        assert few[1] > 0.98 * few[0]


def test_stragglers_slow_down_themselves_alone():
    found = records_per_second(COSTS, replace(FOUR, straggler_share=0.5, straggler_factor=2.0))
    assert found == pytest.approx(3 / 4 * records_per_second(COSTS, FOUR), rel=0.05)


def test_each_replica_more_costs_a_frame():
    alone = Cluster(workers=1, ps=1, worker_cores=1.0)
    many = replace(alone, ps=100)
    more = 2 * 99 * COSTS.worker_frame
    ratio = (4e-3 + more) / 4e-3
    found = records_per_second(COSTS, alone) / records_per_second(COSTS, many)
    assert found == pytest.approx(ratio, rel=0.05)
