import os

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.worker import cores as room
from elasticdl.worker.cores import choose_threads, threads_of, usable_cores


@pytest.fixture
def cores_of(tmp_path, monkeypatch):
    """Return how many cores are usable, given an affinity, own cgroups, and files of quotas."""

    def cores(affinity, own, files):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)))
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "own").write_text(own)
        return usable_cores(tmp_path / "cgroup", tmp_path / "own")

    return cores


def test_without_a_quota_the_affinity_counts(cores_of):
    assert cores_of(6, "0::/user.slice\n", {"user.slice/cpu.max": "max 100000\n"}) == 6


def test_the_smallest_quota_of_all_levels_counts(cores_of):
    files = {"pod/cpu.max": "350000 100000\n", "pod/container/cpu.max": "500000 100000\n"}
    assert cores_of(64, "0::/pod/container\n", files) == 3


def test_a_container_sees_its_quota_at_the_root(cores_of):
    assert cores_of(64, "0::/../../pod\n", {"cpu.max": "400000 100000\n"}) == 4


def test_a_quota_of_version_1_counts(cores_of):
    files = {"cpu/job/cpu.cfs_quota_us": "250000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}
    assert cores_of(64, "4:cpu,cpuacct:/job\n", files) == 2
    files["cpu/job/cpu.cfs_quota_us"] = "-1\n"
    assert cores_of(64, "4:cpu,cpuacct:/job\n", files) == 64


def test_less_than_a_core_is_one(cores_of):
    assert cores_of(2, "0::/\n", {"cpu.max": "50000 100000\n"}) == 1


def test_without_cgroups_the_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert usable_cores(tmp_path / "none", tmp_path / "none") == 2


@pytest.mark.parametrize(
    ("setting", "cores", "num_workers", "has_tables", "count"),
    [
        ("auto", 64, 1, False, 64),
        ("auto", 64, 4, False, 16),
        ("auto", 2, 3, False, 1),
        ("auto", 64, 4, True, 1),
        (8, 2, 4, True, 8),
    ],
)
def test_cores_are_shared_by_dense_workers(setting, cores, num_workers, has_tables, count):
    assert choose_threads(setting, cores, num_workers, has_tables, {}).count == count


def test_the_variable_of_tensorflow_is_obeyed_where_the_flag_is_not_given():
    environment = {"TF_NUM_INTRAOP_THREADS": "3"}
    assert choose_threads("auto", 64, 1, False, environment).count == 3
    assert choose_threads(2, 64, 1, False, environment).count == 2
    environment = {"TF_NUM_INTRAOP_THREADS": "0"}  # as if it was not set
    assert choose_threads("auto", 64, 2, False, environment).count == 32


def test_workers_share_the_cores_of_one_machine(monkeypatch):
    monkeypatch.setattr(room, "usable_cores", lambda: 8)
    monkeypatch.setattr(room, "has_tables", lambda: False)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    words = {"model_def": "a.forward", "training_data": "/data", "launcher": "process"}
    words |= {"num_workers": "3", "distribution_strategy": "ParameterServerStrategy"}
    assert threads_of(build_config("train", words)).count == 2
