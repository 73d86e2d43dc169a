"""Whether a model overfits is decided by the evaluations alone, and said once."""

import json

import pytest

from elasticdl.job import Finished, TaskKind
from elasticdl.job.status import no_status
from elasticdl.master.actions import Note
from elasticdl.master.evaluation import EvaluationResult
from elasticdl.master.status import picture
from elasticdl.packages.advice import events, overfitting
from elasticdl.packages.advice.overfitting import overfitting_of
from elasticdl.settings.best import Best

AUC, LOSS = Best("auc", "max"), Best("loss", "min")


def results(values, training, name="auc", of_training="auc", num_records=10_000):
    return [
        EvaluationResult(i, 100 * i, {name: value}, num_records, i + 1, {of_training: trained})
        for i, (value, trained) in enumerate(zip(values, training, strict=True))
    ]


@pytest.mark.parametrize(
    ("found", "metric"),
    [
        (results([0.7, 0.8, 0.78, 0.76], [0.7, 0.8, 0.85, 0.9]), AUC),
        (results([0.6, 0.5, 0.55, 0.6], [0.6, 0.5, 0.4, 0.3], "loss", "loss"), LOSS),
        (results([0.7, 0.8, 0.78, 0.76], [0.6, 0.5, 0.4, 0.3], "auc", "loss"), AUC),
        (
            results([0.7, 0.8, 0.78, 0.79], [0.7, 0.8, 0.85, 0.9], "y/auc", "y_auc"),
            Best("y/auc", "max"),
        ),
        (results([0.7, 0.8, 0.78], [0.7, 0.8, 0.85]), None),  # one worse one is often chance
        (results([0.7, 0.8, 0.78, 0.76], [0.7, 0.8, 0.75, 0.72]), None),  # training gets worse too
        (results([0.7, 0.8, 0.79, 0.795], [0.7, 0.8, 0.85, 0.9]), None),  # within chance
        (results([0.7, 0.8, 0.7, 0.7], [0.7, 0.8, 0.85, 0.9], num_records=30), None),
        (results([0.7, 0.8, 0.7, 0.7, 0.81], [0.7, 0.8, 0.85, 0.9, 0.91]), None),  # best again
        (results([0.7, float("nan"), 0.6, 0.6], [0.5, 0.6, 0.7, 0.8]), AUC),
        (results([0.7, 0.8, float("nan"), float("nan")], [0.7, 0.8, 0.85, 0.9]), None),
        (results([0.7, 0.8, 0.7, 0.6], [0.1, 0.2, 0.3, 0.4], "profit", "profit"), None),
        (results([0.7, 0.8, 0.7, 0.6], [0.1, 0.2, 0.3, 0.4], "auc", "other"), None),
        ([], None),
    ],
)
def test_validation_falls_while_training_rises(found, metric):
    told = overfitting_of(found)
    assert (None if told is None else told.metric) == metric


@pytest.mark.parametrize(
    ("name", "kept", "remedy"),
    [
        (
            "auc",
            None,
            "Train for fewer epochs (EarlyStopping), keep the best (--keep_best=auc), or "
            "regularize the model",
        ),
        (  # whether more of it is better is told by the flag alone
            "profit",
            Best("profit", "max"),
            "The checkpoint of the best profit is kept (--keep_best): use it, train for fewer "
            "epochs (EarlyStopping), or regularize the model",
        ),
        (  # another metric than the one that overfits
            "auc",
            Best("profit", "max"),
            "The checkpoint of the best profit is kept (--keep_best): use it, train for fewer "
            "epochs (EarlyStopping), or regularize the model",
        ),
    ],
)
def test_the_words_say_what_to_do(name, kept, remedy):
    found = results([0.7, 0.8, 0.7, 0.6], [0.1, 0.2, 0.3, 0.4], name, name)
    told = overfitting_of(found, kept)
    assert told is not None
    assert told.words == (
        f"the model overfits: validation {name} was best after epoch 2, at update 100 (0.8) and "
        f"is 0.6 now, while training {name} improved from 0.2 to 0.4. {remedy}"
    )


def test_job_says_once_that_it_overfits_and_what_is_best(master_kit):
    config = master_kit.config(num_epochs=5)
    play = master_kit.play(config, training=(("a", 30),), validation=(("v", 3_000),))
    play.core.begin(0.0)
    play.register(0)
    losses, aucs = iter([0.7, 0.6, 0.5, 0.4, 0.3]), iter([0.6, 0.8, 0.7, 0.6, 0.5])
    while not isinstance(lease := play.lease(), Finished):
        if lease.task.kind is TaskKind.TRAINING:
            play.version += 3
            loss = 30 * next(losses)
            play.report(lease, num_records=30, loss_sum=loss, model_version=play.version)
        elif lease.task.kind is TaskKind.METRICS:
            play.report(lease, metrics={"auc": next(aucs)})
        else:
            play.work_off(lease)
        if play.core.plan.is_trained and play.core.evaluations.running_id is None:
            break
    told = [n for n in play.do(Note) if isinstance(n.kind, events.Overfitting)]
    assert [(n.kind.value, n.is_warning) for n in told] == [(0.6, True)]
    status = picture(play.core, 0.0)
    assert "is 0.5 now, while training loss improved from 0.6 to 0.3" in status.overfitting
    again = master_kit.core(config, training=(("a", 30),), validation=(("v", 3_000),))
    again.restore(json.loads(json.dumps(play.core.snapshot())))
    assert picture(again, 0.0).overfitting == status.overfitting
    assert again.evaluations.has_told_overfitting


def test_evaluations_are_looked_at_when_there_is_a_new_one(master_kit, monkeypatch):
    looked = []
    monkeypatch.setattr(overfitting, "overfitting_of", lambda results, kept: looked.append(kept))
    core = master_kit.core(master_kit.config(), training=(("a", 30),))
    for num_results in (1, 2):
        core.evaluations.results.append(None)
        for _ in range(3):
            core.features.show(no_status("job", 1))
        assert len(looked) == num_results
