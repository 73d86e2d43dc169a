"""A trainer that is put together of parts; and what a framework has beyond them."""

from types import SimpleNamespace

import pytest

from elasticdl.backends.base import ChecksData, ChecksExport, KeepsNames, RunsCallbacks
from elasticdl.backends.numpy import NumpyTrainer
from elasticdl.packages.frameworks.parts import ComposedTrainer, Parts
from elasticdl.packages.frameworks.towers import HasTowers


class Trainer(ComposedTrainer):
    def __init__(self, parts):
        super().__init__(feed=None)
        self.made = parts

    def _build(self, sample):
        return self.made


def parts_with(callbacks=None, need_parameters=False):
    def answer(*given):
        return given

    return Parts(
        description="described",
        values=SimpleNamespace(initial_values=answer, given_rows=answer),
        lookups=SimpleNamespace(tables=[1, 0], need_parameters=need_parameters, ids=answer),
        step=SimpleNamespace(train=answer, predict=answer),
        evaluation=SimpleNamespace(measure=answer, results=answer),
        exporter=SimpleNamespace(check=answer),
        rate=lambda version: version / 2,
        has_schedule=True,
        callbacks=callbacks,
    )


def test_what_is_known_of_a_model_is_known_once_it_is_built():
    callbacks = SimpleNamespace(needs="needs", run=lambda call, is_alone: f"ran {call}")
    trainer = Trainer(parts_with(callbacks, need_parameters=True))
    assert (trainer.callbacks, trainer.has_schedule, trainer.ids_need_parameters) == (
        None, False, False,
    )  # fmt: skip
    with pytest.raises(AssertionError, match="built before it is used"):
        trainer.id_sites()

    assert trainer.build("sample") == "described"

    assert (trainer.callbacks, trainer.has_schedule, trainer.ids_need_parameters) == (
        "needs", True, True,
    )  # fmt: skip
    assert trainer.run_callbacks("call", True) == "ran call"


def test_each_call_is_answered_by_its_part():
    trainer = Trainer(parts_with())
    trainer.build("sample")
    assert trainer.id_sites() == [1, 0]
    assert trainer.learning_rate(4) == 2.0
    assert trainer.ids("minibatch") == ("minibatch",)
    assert trainer.train_step("minibatch", "rows", "dense", "state") == (
        "minibatch", "rows", "dense", "state",
    )  # fmt: skip
    assert trainer.metric_results("states") == ("states",)


def test_an_array_model_has_no_method_for_what_it_cannot():
    abilities = ChecksData, ChecksExport, HasTowers, KeepsNames, RunsCallbacks
    assert [kind for kind in abilities if issubclass(NumpyTrainer, kind)] == [KeepsNames]
