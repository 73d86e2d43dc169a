"""What of a job's flags a server is told."""

from elasticdl.cli.flags import build_config
from elasticdl.observe.mlflow_run import parameters_of


def test_flags_that_were_given_are_parameters_and_none_of_them_has_a_secret():
    words = {"model_def": "zoo.forward", "training_data": "data", "num_epochs": "3"}
    words |= {"data_reader_params": "password=guess", "mlflow_uri": "http://127.0.0.1:5000"}
    words |= {"distribution_strategy": "ParameterServerStrategy", "mlflow_experiment": "clicks"}
    found = parameters_of(build_config("train", words))
    assert found == {
        "model_def": "zoo.forward",
        "training_data": "data",
        "num_epochs": "3",
        "distribution_strategy": "ParameterServerStrategy",
    }
