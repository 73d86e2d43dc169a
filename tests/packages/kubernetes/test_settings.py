"""What a job on Kubernetes is, and what it is refused."""

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.errors import ConfigError
from elasticdl.launchers import choose
from elasticdl.packages.kubernetes.settle import settle
from elasticdl.worker import cores

TRAIN = {"model_def": "a.b.forward", "training_data": "/data", "image_name": "a/b"}
ON_VOLUME = {"job_dir": "/jobs/a", "volume": "claim_name=jobs,mount_path=/jobs"}


@pytest.mark.parametrize("strategy", ["AllreduceStrategy", "HybridStrategy"])
def test_workers_reduce_as_pods(strategy):
    assert build_config("train", TRAIN | {"distribution_strategy": strategy}).has_worlds


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (ON_VOLUME, 512),
        (ON_VOLUME | {"recovery_seconds": "0"}, 0),
        ({}, 0),  # the job's folder goes with its pod
    ],
)
def test_replicas_keep_a_redo_log_where_another_pod_finds_it(words, expected):
    config = build_config("train", TRAIN | words)

    told = [note for note in choose.notes(config) if "redo log of up to 512 MB" in note]

    assert settle(config).redo_log_bytes == expected * 1_000_000
    assert len(told) == (expected == 512)


def test_each_worker_has_cores_of_its_own(monkeypatch):
    monkeypatch.setattr(cores, "usable_cores", lambda: 8)
    monkeypatch.setattr(cores, "has_tables", lambda: False)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    assert cores.threads_of(build_config("train", TRAIN | {"num_workers": "3"})).count == 8


def test_settings_of_an_earlier_version_are_found_by_their_names():
    config = build_config("train", TRAIN | {"worker_resource_request": "cpu=2"})
    values = config.model_dump(mode="json")
    before = values["packages"].pop("kubernetes") | values.pop("resources")
    assert type(config).model_validate(values | {"kubernetes": before}) == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"worker_devices": "cuda:0,cuda:1"}, "a pod has GPUs of its own: expected one device"),
        ({"launcher": "process"}, "--image_name is of jobs on Kubernetes: give --image_name, or"),
        ({"launcher": "slurm"}, "expected --slurm_options, or not this flag, with --launcher=slu"),
        ({"metrics_port": "0"}, "--metrics_port=0: expected a port above 0 in each pod"),
        ({"trace": "every=10"}, "--trace: on Kubernetes the folder of a worker goes with its pod"),
        ({"queue_name": "q", "queue_min_workers": "2"}, "expected at most --num_workers=1"),
        ({"job_name": "A_b"}, "--job_name: expected at most 40 small letters"),
        ({"ps_resource_limit": "cpu=0.5"}, "--ps_resource_limit: expected at least what is req"),
        ({"distribution_strategy": "Local"}, "ParameterServerStrategy on Kubernetes"),
    ],
)
def test_what_does_not_go_with_kubernetes_is_refused_in_words(words, message):
    with pytest.raises(ConfigError, match=message):
        build_config("train", TRAIN | words)
