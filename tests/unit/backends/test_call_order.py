"""What a loss or a metric of the user is called with, and what is told of it."""

import functools

import pytest

from elasticdl.backends.call_order import as_keras, takes_predictions_first


class OfMethod:
    """An object whose method takes the predictions first, as its names say."""

    def __init__(self, method):
        setattr(self, method, lambda y_pred, y_true: y_pred - y_true)

    def __call__(self, *given):
        return given[0] - given[1]


def of_now(labels, predictions):
    return labels - predictions


def of_then(output, labels, sample_weight=None):
    return output - labels, sample_weight


def short(a, b):
    return a - b


def two_predictions(score, other_score):
    return score - other_score


SWAPPED = [
    lambda y_pred, y_true: y_pred - y_true,
    lambda y_hat, y: y_hat - y,
    lambda preds, batch: preds - batch,
    lambda x, target: x - target,
    lambda y, tgt: y - tgt,
    functools.partial(lambda n, logits, targets: logits - targets - n, 0),
    OfMethod("call"),
    OfMethod("update_state"),
    OfMethod("update"),
    OfMethod("forward"),
]
USUAL = [of_now, short, two_predictions, "mse", None, sum]
USUAL += [lambda target_scores, y: y, lambda y, predicted_labels: y]


@pytest.fixture
def told():
    return []


@pytest.mark.parametrize("function", SWAPPED)
def test_keras_has_the_labels_first_and_other_names_are_told(function, told):
    assert as_keras(function, "loss", told.append) is function
    [line] = told
    assert "is called with the labels first, as by compile of Keras" in line


def test_the_loss_of_0_1_has_the_predictions_first_which_is_told(told):
    assert as_keras(of_then, "loss", told.append)(1, 10, sample_weight=3) == (9, 3)
    assert "loss(output, labels) is called with the predictions first" in told[0]


@pytest.mark.parametrize("function", USUAL)
def test_what_has_the_labels_first_stays_as_it_is(function, told):
    assert as_keras(function, "loss", told.append) is function
    assert not takes_predictions_first(function, "loss", told.append)
    assert not told


def test_each_part_of_a_loss_of_several_outputs_is_looked_at(told):
    given = {"a": "mse", "b": [SWAPPED[0], of_now]}
    assert as_keras(given, "loss", told.append) == given
    assert told[0].startswith("loss 'b'(y_pred, y_true) is called")


def test_a_class_is_made_as_compile_does_it(told):
    class Loss:
        def __call__(self, labels, predictions):
            return labels - predictions

    assert as_keras(Loss, "loss", told.append)(10, 1) == 9


@pytest.mark.parametrize("function", SWAPPED)
def test_elsewhere_names_say_what_comes_first(function, told):
    assert takes_predictions_first(function, "loss", told.append)
    assert "is called with the predictions first, as its names say" in told[0]


def test_modules_of_pytorch_have_the_predictions_first_unless_their_names_say_otherwise(told):
    for usual in (SWAPPED[0], short):
        assert takes_predictions_first(usual, "loss", told.append, is_of_torch=True)
    assert not told
    assert not takes_predictions_first(of_now, "loss", told.append, is_of_torch=True)
    assert "is called with the labels first, as its names say" in told[0]
