"""How the curves of a job are sent: by a thread of its own, again, and without a secret."""

import dataclasses
import queue
import threading

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


def test_what_came_last_is_sent_again_while_there_is_time(monkeypatch, caplog):
    monkeypatch.setattr(outbox, "_AGAIN_SECONDS", 0.01)
    closing, sent = threading.Event(), []
    answers = iter((OSError("away"), OSError("away"), None))

    def send(item):
        closing.wait(10)
        if (error := next(answers)) is not None:
            raise error
        sent.append(item)

    box = Outbox("--to", send, seconds_between=0.0, is_sent_again=True)
    box.put("the end")
    threading.Timer(0.1, closing.set).start()
    box.close(10)
    assert sent == ["the end"]
    assert "is missing there" not in caplog.text


def test_what_came_last_is_given_up_when_its_time_is_over(monkeypatch, caplog):
    monkeypatch.setattr(outbox, "_AGAIN_SECONDS", 0.01)

    def send(_):
        raise OSError("away")

    box = Outbox("--to", send, seconds_between=0.0, is_sent_again=True)
    box.put("the end")
    box.close(0.1)
    box._thread.join(10)
    assert not box._thread.is_alive()
    assert "what came last is missing there" in caplog.text


def test_what_may_not_be_left_out_is_sent_though_many_others_wait():
    goes_on, sent = threading.Event(), []

    def send(item):
        goes_on.wait(10)
        sent.append(item)

    box = Outbox("--to", send, seconds_between=0.0, is_sent_again=True)
    for number in range(300):
        box.put(number, may_be_left_out=True)
    box.put("the end")
    goes_on.set()
    box.close(10)
    assert sent[-1] == "the end"
    assert len(sent) < 110


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
