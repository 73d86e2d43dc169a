"""What a model file may say of the life cycle of ids."""

import json

import numpy as np
import pytest

from elasticdl.errors import ModelError
from elasticdl.layers import CountAdmission, Expiry, ProbabilityAdmission, RowStatistics
from elasticdl.layers.life_cycle import admission_of, config_of, expiry_of
from elasticdl.layers.row_rules import AdmissionSpec


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CountAdmission(1), "count must be a whole number from 2"),
        (lambda: CountAdmission(2.5), "count must be a whole number"),
        (lambda: CountAdmission(True), "count must be a whole number"),
        (lambda: CountAdmission(np.True_), "count must be a whole number"),
        (lambda: CountAdmission(300, sketch_bytes=1 << 20), "from 2 to 255"),
        (lambda: CountAdmission(3, sketch_bytes=1000), "from 262144 to"),
        (lambda: ProbabilityAdmission(0), "above 0 and below 1"),
        (lambda: ProbabilityAdmission("half"), "above 0 and below 1"),
        (lambda: Expiry(), "at least one of steps, days and min_norm"),
        (lambda: Expiry(steps=0), "steps must be a whole number from 1"),
        (lambda: Expiry(days=-1), "days must be a number above 0"),
        (lambda: Expiry(min_norm=float("nan")), "min_norm must be a number above 0"),
        (lambda: RowStatistics({"show", "click"}), "names is a set, .* expected a tuple"),
        (lambda: admission_of(5, "table 't'"), "table 't': admission must be CountAdmission"),
        (lambda: expiry_of({"steps": 5}, "table 't'"), "table 't': expiry must be Expiry"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, said):
    with pytest.raises(ModelError, match=said):
        make()


@pytest.mark.parametrize(
    "admission",
    [None, CountAdmission(5), CountAdmission(5, 1 << 20), ProbabilityAdmission(0.25)],
)
def test_an_admission_survives_a_saved_configuration(admission):
    config = json.loads(json.dumps(config_of(admission)))

    assert admission_of(config, "") == admission


def test_a_whole_number_of_numpy_is_taken_as_a_number_of_python():
    expiry = config_of(Expiry(steps=np.int32(10), grace_steps=np.uint8(5)))
    assert json.loads(json.dumps(expiry)) == config_of(Expiry(steps=10, grace_steps=5))
    count = config_of(CountAdmission(np.int64(3), sketch_bytes=np.int64(1 << 20)))
    assert json.loads(json.dumps(count)) == config_of(CountAdmission(3, 1 << 20))


def test_an_expiry_survives_a_saved_configuration():
    expiry = Expiry(steps=10, min_norm=0.5)

    assert expiry_of(json.loads(json.dumps(config_of(expiry))), "") == expiry


def test_the_store_is_told_a_kind_and_numbers():
    assert AdmissionSpec.of(None) is None
    assert AdmissionSpec.of(CountAdmission(5)) == AdmissionSpec("count", {"count": 5.0})
    assert AdmissionSpec.of(CountAdmission(5, 1 << 20)) == AdmissionSpec(
        "sketch", {"count": 5.0, "bytes": float(1 << 20)}
    )
    assert AdmissionSpec.of(ProbabilityAdmission(0.5)) == AdmissionSpec(
        "probability", {"probability": 0.5}
    )


@pytest.mark.keras
def test_a_layer_keeps_its_life_cycle_and_trains_as_ever_in_a_plain_session():
    import keras
    import numpy as np

    from elasticdl.layers import Embedding

    layer = Embedding(
        2, input_dim=9, name="t", admission=CountAdmission(3), expiry=Expiry(days=2.5)
    )
    again = Embedding.from_config(json.loads(json.dumps(layer.get_config())))

    assert again.admission == CountAdmission(3)
    assert again.expiry == Expiry(days=2.5)
    assert layer(np.array([[1, 2]])).shape == (1, 2, 2)
    assert isinstance(layer.trainable_variables[0], keras.Variable)
    with pytest.raises(ModelError, match="Embedding: admission must be"):
        Embedding(2, admission=3)
