"""What a job says before it runs."""

import pytest

from elasticdl.config import JobConfig
from elasticdl.launchers import choose


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


@pytest.mark.parametrize(
    ("num_ps", "expected"), [(1, 1), (2, 2), (3, 2), (4, 4), (15, 4), (16, 8), (64, 16), (100, 16)]
)
def test_the_number_of_replicas_chooses_how_many_minibatches_a_frame_has(num_ps, expected):
    config = JobConfig(
        command="train",
        model={"model_zoo": ".", "model_def": "a.b.forward"},
        data={"training_data": "train.csv"},
        training={
            "distribution_strategy": "ParameterServerStrategy",
            "exchange_minibatches": "auto",
        },
        cluster={"num_ps_pods": num_ps},
    )
    assert config.minibatches_per_exchange == expected
    (note,) = [note for note in choose.notes(config) if "--exchange_minibatches" in note]
    assert f"=auto: {expected} with {num_ps} ps replicas" in note


@pytest.mark.parametrize(("checkpoint", "expected"), [({}, 0), ({"ps_redo_mb": 64}, 64)])
def test_replicas_on_one_machine_keep_a_redo_log_that_was_asked_for(checkpoint, expected):
    config = JobConfig(
        command="train",
        model={"model_zoo": ".", "model_def": "a.b.forward"},
        data={"training_data": "train.csv"},
        training={"distribution_strategy": "ParameterServerStrategy"},
        checkpoint=checkpoint,
    )
    assert config.redo_log_bytes == expected * 1_000_000
    assert not any("redo log" in note for note in choose.notes(config))
