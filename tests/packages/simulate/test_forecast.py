"""The bottleneck is named, losses add up, and jobs of others come out beside their figures."""

from dataclasses import replace

import pytest

from elasticdl.config import DataSection, JobConfig, ModelSection, TrainingSection
from elasticdl.errors import ConfigError
from elasticdl.job import Strategy
from elasticdl.master.tasks import growth_of
from elasticdl.packages.simulate.cluster import Cluster, Resource
from elasticdl.packages.simulate.costs import read_costs
from elasticdl.packages.simulate.forecast import forecast
from elasticdl.packages.simulate.losses import Hazards, hours
from elasticdl.packages.simulate.pace import records_per_second
from elasticdl.packages.simulate.picture import picture
from elasticdl.packages.simulate.published import FLIGHTS, PRESETS

COSTS = replace(FLIGHTS, wait=0.0)
TERABYTE = 4_373_472_329  # records of Criteo's log of 24 days
FOUR = Cluster(workers=4, ps=2, latency=20e-6)
BOUNDS = {
    Resource.COMPUTE: FOUR,
    Resource.WORKER_NETWORK: replace(FOUR, worker_network=20e6),
    Resource.PS_NETWORK: replace(FOUR, ps_network=40e6),
    Resource.PS_PROCESSOR: replace(FOUR, ps_speed=0.1),
    Resource.INPUT: replace(FOUR, input_bandwidth=20e6),
    Resource.MASTER: replace(FOUR, master_speed=0.05),
    Resource.LATENCY: replace(FOUR, latency=20e-3),
}


@pytest.mark.parametrize("resource", BOUNDS)
def test_what_bounds_a_job_is_named(resource):
    found = forecast(COSTS, BOUNDS[resource], Hazards(), 3600.0)
    assert found.bottleneck is resource
    assert found.gains[resource] > 1.3
    others = [gain for what, gain in found.gains.items() if what is not resource]
    assert max(others) < found.gains[resource]


def test_efficiency_is_that_of_one_worker_alone():
    assert forecast(FLIGHTS, replace(FOUR, workers=1, ps=1), Hazards(), 60.0).efficiency == 1.0
    slow = forecast(FLIGHTS, BOUNDS[Resource.INPUT], Hazards(), 60.0)
    assert slow.efficiency == pytest.approx(slow.records_per_second / 4 / slow.alone)


def test_minibatches_of_one_exchange_share_its_frames_and_have_fewer_keys():
    kept = [replace(FLIGHTS, exchange_minibatches=num).keys_together for num in (1, 4, 16, 64)]
    assert kept == [1.0, 0.734, 0.52, 0.52]
    assert FLIGHTS.of_replica(10, 4) == pytest.approx((4 * FLIGHTS.ps + 9 * FLIGHTS.ps_frame) / 20)
    many = Cluster(workers=20, ps=40, ps_speed=0.03)

    def speed(num):
        return records_per_second(replace(FLIGHTS, exchange_minibatches=num), many)

    assert speed(8) > 2 * speed(1)


def test_one_master_has_tasks_for_a_thousand_workers_if_they_grow_with_the_data():
    config = JobConfig(
        command="train",
        model=ModelSection(model_def="zoo.model.forward"),
        data=DataSection(training_data="train"),
        training=TrainingSection(
            minibatch_size=512, distribution_strategy=Strategy.PARAMETER_SERVER
        ),
    )
    costs = replace(FLIGHTS, exchange_minibatches=16)
    growth = growth_of(config, TERABYTE)
    grown = replace(costs, minibatches_per_task=growth * costs.minibatches_per_task)
    assert records_per_second(grown, Cluster(workers=1000, ps=250)) > 100e6


def test_records_that_did_not_count_are_accounted_for():
    hazards = Hazards(worker_rate=5.0, ps_rate=1.0)
    balance = hours(hazards, lambda workers: 100.0 * workers, 10, 4, 512, 24 * 3600.0)
    parts = balance.away + balance.stalled + balance.repeated + balance.checkpoints
    assert balance.counted + parts == pytest.approx(balance.possible)
    assert balance.num_worker_losses == pytest.approx(24 * 50, rel=0.1)
    assert balance.away / balance.possible == pytest.approx(5 / 3600 * 32, rel=0.15)
    assert balance.stalled / balance.possible == pytest.approx(4 / 3600 * 32, rel=0.3)


def test_a_job_that_loses_nothing_has_a_goodput_of_one():
    hazards = Hazards(checkpoint_slows=0.0)
    assert hours(hazards, lambda workers: 7.0 * workers, 10, 4, 512).goodput == pytest.approx(1.0)


def test_goodput_falls_as_more_is_lost_and_rises_with_a_redo_log():
    def goodput(**changes):
        hazards = Hazards(ps_rate=2.0, **changes)
        return hours(hazards, lambda workers: 100.0 * workers, 10, 4, 512).goodput

    assert goodput(worker_rate=20.0) < goodput(worker_rate=1.0)
    assert goodput() < goodput(recovery_seconds=0.0)


def test_the_table_of_the_sparse_lr_has_its_first_row_and_its_wall():
    preset = PRESETS["sparse-lr"]

    def speed(workers, ps, input_times=1.0):
        cluster = replace(preset.cluster, workers=workers, ps=ps)
        return records_per_second(preset.costs, cluster.faster(Resource.INPUT, input_times))

    assert speed(8, 8) == pytest.approx(52_000, rel=0.03)
    assert speed(160, 20) == pytest.approx(500_000, rel=0.1)
    assert speed(160, 32) == pytest.approx(speed(160, 20), rel=0.01)
    assert speed(160, 32, input_times=2.0) > 1.9 * speed(160, 32)


def test_costs_are_read_as_they_were_written_and_others_are_refused(tmp_path):
    path = tmp_path / "costs" / "flights.json"
    FLIGHTS.write(path)
    assert read_costs(path) == FLIGHTS
    for text in ("{}", "no", '{"model": "a"}'):
        path.write_text(text)
        with pytest.raises(ConfigError, match="expected costs that elasticdl simulate --calibrate"):
            read_costs(path)


def test_larger_minibatches_cost_a_record_the_same_and_less_frames():
    large = FLIGHTS.of_minibatches(10 * FLIGHTS.minibatch_size)
    assert large.compute == pytest.approx(10 * FLIGHTS.compute)
    assert large.worker_frame == FLIGHTS.worker_frame
    many = Cluster(workers=2, ps=100)
    small, big = (forecast(costs, many, Hazards(), 60.0) for costs in (FLIGHTS, large))
    assert big.records_per_second > 1.5 * small.records_per_second


def test_the_picture_says_speed_and_bottleneck():
    found = forecast(COSTS, FOUR, Hazards(), 60.0)
    drawn = picture(found, [(2, found.records_per_second / 2), (4, found.records_per_second)])
    assert f"{found.records_per_second:,.0f} records/s" in drawn
    assert "bound by compute" in drawn
    assert "Infinity" not in drawn


def test_a_cluster_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="--ps_cores: expected more than 0, found 0"):
        Cluster(workers=1, ps=1, ps_cores=0)
    with pytest.raises(ConfigError, match="--stragglers: expected a share"):
        Cluster(workers=1, ps=1, straggler_share=10)
