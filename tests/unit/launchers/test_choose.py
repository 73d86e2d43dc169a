"""What a job says before it runs."""

import pytest

from elasticdl.config import JobConfig
from elasticdl.launchers import choose
from elasticdl.launchers.kubernetes import settle


@pytest.mark.parametrize(
    ("workers", "training", "is_said"),
    [
        (2, {}, True),
        (1, {}, False),
        (2, {"max_staleness": 1}, False),
        (2, {"staleness_lr_modulation": True}, False),
        (2, {"use_async": False}, False),
        (2, {"distribution_strategy": "AllreduceStrategy"}, False),
    ],
)
def test_late_gradients_are_told_unless_a_flag_limits_them(workers, training, is_said):
    training = {"distribution_strategy": "ParameterServerStrategy", **training}
    config = JobConfig(
        command="train",
        model={"model_zoo": ".", "model_def": "a.b.forward"},
        data={"training_data": "train.csv"},
        training=training,
        cluster={"num_workers": workers},
    )

    said = [note for note in choose.notes(config) if "late" in note]

    assert bool(said) == is_said
    assert all("--max_staleness" in note and "3 updates" in note for note in said)


VOLUME = "claim_name=jobs,mount_path=/jobs"
KUBERNETES = {"launcher": "kubernetes", "job_dir": "/jobs/a"}


@pytest.mark.parametrize(
    ("cluster", "volume", "checkpoint", "expected"),
    [
        ({}, "", {}, 0),
        ({}, "", {"ps_redo_mb": 64}, 64),
        (KUBERNETES, VOLUME, {}, 512),
        (KUBERNETES, VOLUME, {"recovery_seconds": 0}, 0),
        ({**KUBERNETES, "job_dir": None}, "", {}, 0),  # the job's folder goes with its pod
    ],
)
def test_replicas_on_a_cluster_keep_a_redo_log_where_another_machine_finds_it(
    cluster, volume, checkpoint, expected
):
    config = JobConfig(
        command="train",
        model={"model_zoo": ".", "model_def": "a.b.forward"},
        data={"training_data": "train.csv"},
        training={"distribution_strategy": "ParameterServerStrategy"},
        cluster=cluster,
        checkpoint=checkpoint,
        kubernetes={"image_name": "image", "volume": volume}
        if cluster.get("launcher") == "kubernetes"
        else {},
    )

    told = [note for note in choose.notes(config) if "redo log of up to 512 MB" in note]
    settled = settle.settle(config) if config.is_on_kubernetes else config

    assert settled.redo_log_bytes == expected * 1_000_000
    assert len(told) == (expected == 512)
