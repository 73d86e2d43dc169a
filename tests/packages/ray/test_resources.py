"""What actors ask for, and what is said of those that wait."""

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.errors import ConfigError
from elasticdl.job import Role, Strategy
from elasticdl.packages.ray.resources import RayNode, asked_for, options_of, why_it_waits

GIB = 1 << 30
SMALL = RayNode("a", {"CPU": 2.0, "memory": 4.0 * GIB})
LARGE = RayNode("b", {"CPU": 8.0, "memory": 4.0 * GIB, "GPU": 1.0})
LEAVING = RayNode("c", {"CPU": 64.0, "memory": 64.0 * GIB}, is_draining=True)


def config(**words):
    given = {"model_zoo": "zoo", "model_def": "a.forward", "training_data": "data"}
    return build_config("train", given | {"launcher": "ray"} | words)


def test_requests_of_pods_are_those_of_actors():
    request = "cpu=500m,memory=2Gi,gpu=1,example.com/fast=2"
    asked = asked_for(config(worker_resource_request=request), Role.WORKER)
    assert options_of(asked) == {
        "num_cpus": 0.5,
        "num_gpus": 1.0,
        "memory": 2 * GIB,
        "resources": {"example.com/fast": 2.0},
    }


@pytest.mark.parametrize(
    ("asked", "free", "words"),
    [
        ({"CPU": 4.0}, {"CPU": 4.0}, ""),
        (
            {"CPU": 4.0, "memory": 1.0 * GIB},
            {"CPU": 3.0, "memory": 5.0 * GIB},
            "no room on the Ray cluster: asked is CPU 4, memory 1 GiB; free on its 2 nodes (1 more "
            "being drained) together: CPU 3, memory 5 GiB",
        ),
        ({"CPU": 16.0}, {"CPU": 64.0}, "no node of the Ray cluster is large enough: asked is CPU"),
        ({"CPU": 1.0, "memory": 5.0 * GIB}, {}, "has: CPU 8, memory 4 GiB. The autoscaler is"),
        ({"TPU": 1.0}, {}, "the most that one of its 2 nodes (1 more being drained) has: TPU 0"),
    ],
)
def test_why_an_actor_waits_is_said_in_words_of_the_cluster(asked, free, words):
    said = why_it_waits(asked, [SMALL, LARGE, LEAVING], free)
    assert words in said
    assert bool(said) == bool(words)


def test_room_that_no_node_has_by_itself_is_none_after_a_while():
    asked, free = {"CPU": 2.0}, {"CPU": 2.0}  # one on each of two nodes
    assert why_it_waits(asked, [SMALL, LARGE], free) == ""
    assert "no room" in why_it_waits(asked, [SMALL, LARGE], free, is_late=True)


def test_parameters_live_on_ps_replicas_unless_something_else_is_said():
    assert config().training.distribution_strategy is Strategy.PARAMETER_SERVER


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"distribution_strategy": "Local"}, "--distribution_strategy=Local uses one process"),
        ({"volume": "claim_name=a,mount_path=/a"}, "--volume is of jobs on Kubernetes"),
        ({"worker_resource_limit": "cpu=2"}, "--worker_resource_limit is of jobs on Kubernetes"),
        ({"ps_resource_request": "cpu=1,disk=4Gi"}, "--ps_resource_request=cpu=1,disk=4Gi: Ray"),
        ({"worker_devices": "cuda:0,cuda:1"}, "--worker_devices=cuda:0,cuda:1: several devices"),
        ({"metrics_port": "0"}, "--metrics_port: with --launcher=ray the processes of a job have"),
        ({"num_model_servers": "1"}, "--num_model_servers=1 does not go with --launcher=ray"),
        ({"ray_address": "ray://head:10001"}, "--ray_address: "),
        ({"launcher": "process", "ray_address": "a:1"}, "--ray_address=a:1 is of jobs on Ray"),
    ],
)
def test_what_has_no_meaning_on_ray_is_refused(words, complaint):
    with pytest.raises(ConfigError) as refused:
        config(**words)
    assert complaint in str(refused.value)
