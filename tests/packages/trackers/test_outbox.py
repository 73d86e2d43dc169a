"""How the curves of a job are sent: by a thread of its own, again, and without a secret."""

import dataclasses
import queue

from elasticdl.cli.flags import build_config
from elasticdl.errors import ConfigError
from elasticdl.job.status import no_status
from elasticdl.packages.trackers import outbox
from elasticdl.packages.trackers.outbox import Outbox, Untold, parameters_of


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


def test_what_cannot_be_sent_is_sent_again_and_what_came_meanwhile_after_it(monkeypatch):
    monkeypatch.setattr(outbox, "_AGAIN_SECONDS", 0.0)
    tries, ends = queue.SimpleQueue(), []
    answers = iter((OSError("away"), OSError("away"), None, None))

    def send(item):
        tries.put(item)
        if (error := next(answers)) is not None:
            raise error

    box = Outbox("--to", send, end=lambda: ends.append(1), seconds_between=0.0, is_sent_again=True)
    box.put("a")
    assert [tries.get(timeout=10) for _ in range(3)] == ["a", "a", "a"]
    box.put("b")
    box.close(10)
    assert tries.get(timeout=10) == "b"
    assert ends == [1]


def test_what_nobody_can_send_ends_the_outbox_and_no_one_waits_for_it(caplog):
    def send(_):
        raise ConfigError("no key")

    box = Outbox("--to", send, seconds_between=0.0, is_sent_again=True)
    box.put("a")
    box.close(10)
    assert "--to: no key; nothing more is written there" in caplog.text


def test_numbers_are_new_until_they_are_told_and_again_when_they_are_measured_again():
    untold = Untold()
    status = dataclasses.replace(
        no_status("job", 1), model_version=10, loss=0.5, metrics={"auc": 0.75}
    )
    assert untold.of((status, None)) == untold.of((status, None))
    untold.told((status, None))
    later = dataclasses.replace(status, model_version=20, loss=float("nan"))
    assert untold.of((later, 0.1)) == {"learning_rate": 0.1, "throughput/records_per_second": 0.0}
