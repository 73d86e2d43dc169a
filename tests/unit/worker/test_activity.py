"""The label of the computing thread, from what the threads of a worker are at."""

import threading

import pytest

from elasticdl.job import Label, TaskKind
from elasticdl.observe.labels import LabelClock
from elasticdl.worker.activity import LABELS, Activity, Thread


@pytest.fixture
def labels():
    return LabelClock(clock=lambda: 0.0, seconds_before=0.0)


@pytest.fixture
def activity(labels):
    return Activity(labels)


def test_a_worker_starts_until_it_waits_for_its_first_minibatch(labels, activity):
    activity.at(Thread.FEED, Label.WAIT_FOR_DATA)
    assert labels.label is Label.STARTING
    activity.at(Thread.COMPUTE, None)
    assert labels.label is Label.WAIT_FOR_DATA


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        (TaskKind.TRAINING, Label.TRAIN),
        (TaskKind.EVALUATION, Label.EVALUATE),
        (TaskKind.EXPORT, Label.CHECKPOINT),
    ],
)
def test_while_it_computes_nobody_else_matters(labels, activity, kind, label):
    activity.at(Thread.COMPUTE, LABELS[kind])
    activity.at(Thread.FEED, Label.IDLE)
    activity.at(Thread.PREPARE, Label.WAIT_FOR_PARAMETERS)
    assert labels.label is label


def test_while_it_waits_the_thread_next_to_it_says_for_what(labels, activity):
    activity.at(Thread.COMPUTE, None)
    assert labels.label is Label.IDLE
    activity.at(Thread.FEED, Label.WAIT_FOR_DATA)
    assert labels.label is Label.WAIT_FOR_DATA
    activity.at(Thread.PREPARE, Label.WAIT_FOR_PARAMETERS)
    assert labels.label is Label.WAIT_FOR_PARAMETERS
    activity.at(Thread.FEED, Label.IDLE)
    assert labels.label is Label.WAIT_FOR_PARAMETERS
    activity.at(Thread.PREPARE, None)
    assert labels.label is Label.IDLE


def test_parameters_that_are_lost_are_recovered_and_not_waited_for(labels, activity):
    activity.at(Thread.COMPUTE, None)
    activity.at(Thread.PREPARE, Label.WAIT_FOR_PARAMETERS)
    activity.recover(True)
    assert labels.label is Label.RECOVER
    activity.at(Thread.COMPUTE, Label.TRAIN)
    assert labels.label is Label.TRAIN
    activity.at(Thread.COMPUTE, Label.WAIT_FOR_PARAMETERS)
    assert labels.label is Label.RECOVER
    activity.recover(False)
    assert labels.label is Label.WAIT_FOR_PARAMETERS


def test_a_look_up_in_the_middle_of_a_computation_waits_for_parameters(labels, activity):
    activity.at(Thread.COMPUTE, Label.TRAIN)
    with activity.looking_up():
        assert labels.label is Label.WAIT_FOR_PARAMETERS
    assert labels.label is Label.TRAIN


def test_a_look_up_of_the_thread_that_prepares_does_not_stop_the_computation(labels, activity):
    activity.at(Thread.COMPUTE, Label.TRAIN)

    def prepare():
        activity.prepare_here()
        with activity.looking_up():
            seen.append(labels.label)

    seen = []
    thread = threading.Thread(target=prepare)
    thread.start()
    thread.join()
    assert seen == [Label.TRAIN]


def test_a_push_of_its_own_is_waited_for_and_then_it_goes_on(labels, activity):
    activity.at(Thread.COMPUTE, Label.TRAIN)
    with activity.waiting_for_parameters():
        assert labels.label is Label.WAIT_FOR_PARAMETERS
    assert labels.label is Label.TRAIN


def test_a_worker_without_a_world_forms_one_and_does_not_wait_for_parameters(labels, activity):
    activity.at(Thread.COMPUTE, Label.TRAIN)
    activity.form(True)
    assert labels.label is Label.TRAIN  # what it computes goes on
    with activity.waiting_for_parameters():
        assert labels.label is Label.RE_FORM
        activity.recover(True)
        assert labels.label is Label.RECOVER  # what is lost is made good first
        activity.recover(False)
        activity.form(False)
        assert labels.label is Label.WAIT_FOR_PARAMETERS
