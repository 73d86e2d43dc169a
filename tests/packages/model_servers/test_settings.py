"""With what model servers do not go is said before a job starts."""

import pytest

from elasticdl.cli.flags import build_config
from elasticdl.errors import ConfigError

ON_PS = {"distribution_strategy": "ParameterServerStrategy"}


def config(command="train", **words):
    given = {"model_zoo": "zoo", "model_def": "a.forward", "training_data": "data"}
    return build_config(command, given | words)


@pytest.mark.parametrize("strategy", ["Local", "AllreduceStrategy"])
def test_a_job_without_ps_replicas_has_no_model_servers(strategy):
    words = rf"--num_model_servers=2: .* expected --distribution_strategy=Par.*, found {strategy}"
    with pytest.raises(ConfigError, match=words):
        config(distribution_strategy=strategy, num_model_servers="2")
    assert not config(distribution_strategy=strategy).other_processes


def test_requests_wait_for_others_only_where_there_are_model_servers():
    words = {"model_server_window_seconds": "0.01"} | ON_PS
    with pytest.raises(ConfigError, match=r"--model_server_window_seconds is of model servers"):
        config(**words)
    config(num_model_servers="2", **words)


@pytest.mark.parametrize(
    "words",
    [
        {"on_nan": "skip"},
        {"torch_compile": "true"},
        {"output": "model", "output_tables": "parquet"},
        {"trace": "every=10"},
    ],
)
def test_what_does_not_go_with_model_servers_is_named(words):
    flag = next(reversed(words))
    with pytest.raises(ConfigError, match=rf"--num_model_servers=2 does not go with --{flag}"):
        config(num_model_servers="2", **ON_PS, **words)
    config(**ON_PS, **words)
