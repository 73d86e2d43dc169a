"""What a job writes as a whole must not have something else of the job in it."""

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.errors import ConfigError


def config(**words):
    given = {"model_zoo": "zoo", "model_def": "a.forward", "training_data": "data"}
    return build_config("train", given | words)


@pytest.mark.parametrize(
    ("words", "inner", "outer"),
    [
        ({"output": "m", "export_tables": "m/tables"}, "export_tables", "output"),
        ({"output": "m", "export_tables": "m"}, "export_tables", "output"),
        ({"output": "m/x", "export_tables": "m"}, "output", "export_tables"),
        ({"output": "m", "checkpoint_dir": "./a/../m/checkpoints"}, "checkpoint_dir", "output"),
        ({"output": "m", "job_dir": "m/job"}, "job_dir", "output"),
        ({"output": "m", "tensorboard_log_dir": "m"}, "tensorboard_log_dir", "output"),
        ({"output": "s3://b/m", "checkpoint_dir": "s3://b/m/c"}, "checkpoint_dir", "output"),
    ],
)
def test_a_destination_in_another_is_refused(words, inner, outer):
    with pytest.raises(ConfigError, match=rf"--{inner}=\S+ is in the folder of --{outer}="):
        config(**words)


@pytest.mark.parametrize(
    "words",
    [
        {"output": "m", "export_tables": "m-tables", "checkpoint_dir": "checkpoints"},
        {"output": "job/m", "job_dir": "job", "checkpoint_dir": "job"},
        {"output": "s3://b/m", "checkpoint_dir": "s3://b/m2", "job_dir": "b/m"},
    ],
)
def test_destinations_that_are_apart_pass(words):
    settings = config(**words)
    assert str(settings.checkpoint.output) == words["output"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"export_tables": "t"}, "--export_tables is for tables on ps replicas; Allreduce"),
        ({"output": "m", "output_tables": "parquet"}, "--output_tables=parquet is for tables on"),
    ],
)
def test_tables_of_workers_that_have_none_are_refused(words, says):
    with pytest.raises(ConfigError, match=says):
        config(distribution_strategy="AllreduceStrategy", **words)


def test_partial_checkpoints_need_a_place():
    with pytest.raises(ConfigError, match="--checkpoint_full_every needs --checkpoint_dir"):
        config(checkpoint_full_every=5)
    assert config(checkpoint_full_every=5, checkpoint_dir="c").checkpoint.checkpoint_full_every == 5


def test_predictions_are_written_file_by_file(tmp_path):
    words = {"model_zoo": "zoo", "model_def": "a.forward", "prediction_data": "data"}
    words |= {"saved_model": "m", "output": "p", "job_dir": "p/job"}
    assert str(build_config("predict", words).checkpoint.output) == "p"
