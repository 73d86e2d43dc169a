"""An error of the user's code says which function raised it, and what it said."""

import sys

import pytest

from elasticdl.config import ModelSection
from elasticdl.errors import DataError, ModelError
from elasticdl.model_spec import load_model_spec
from elasticdl.packages.frameworks.user_code import no_place, user_code


def test_error_names_the_function_its_kind_what_it_was_given_and_its_place():
    message = r"^loss\(a, b\) raised ValueError on 3: no such thing \(.*test_user_code.py:\d+\)$"
    with pytest.raises(ModelError, match=message), user_code("loss(a, b)", lambda: " on 3"):
        raise ValueError("no  such\nthing")


def test_end_of_the_message_is_made_of_the_error():
    with (
        pytest.raises(ModelError, match=r"^feed raised KeyError in mode training: 'a'; say b$"),
        user_code("feed", " in mode training", lambda error: "; say b"),
    ):
        raise KeyError("a")


@pytest.mark.parametrize("error", [DataError("record 3"), KeyboardInterrupt(), SystemExit(1)])
def test_what_is_said_already_and_what_ends_a_program_passes(error):
    with pytest.raises(type(error)) as raised, user_code("feed", after=no_place):
        raise error
    assert raised.value is error


@pytest.mark.parametrize("name", ["optimizer", "feed", "callbacks"])
def test_an_object_in_place_of_a_function_is_told_before_it_is_called(monkeypatch, tmp_path, name):
    functions = ["forward", "loss", "optimizer", "feed"]
    lines = [f"def {each}(*args): ..." for each in functions if each != name]
    file = f"object_as_{name}"
    (tmp_path / f"{file}.py").write_text("\n".join([*lines, f"{name} = slice(3)"]))
    monkeypatch.setattr("sys.path", [*sys.path])
    section = ModelSection(model_zoo=tmp_path, model_def=f"{file}.forward")
    with pytest.raises(ModelError, match=rf"expected a function {name}, found .* of slice; write"):
        load_model_spec(section)


@pytest.mark.parametrize(
    ("takes", "params", "found"),
    [
        ("negative_sampling_rate=1.0", "", {"negative_sampling_rate": 0.1}),
        ("**others", "units=2", {"units": 2, "negative_sampling_rate": 0.1}),
        ("units=2", "", r"takes it, def forward\(negative_sampling_rate=1.0\).*without it"),
        ("**others", "negative_sampling_rate=0.5", "give one of them"),
    ],
)
def test_the_rate_of_negatives_goes_to_a_model_function_that_takes_it(
    takes, params, found, tmp_path, monkeypatch, request
):
    file = f"rate_{abs(hash(request.node.name))}"
    lines = [f"def forward({takes}): return dict(locals(), **locals().pop('others', {{}}))"]
    lines += ["def loss(): ...", "def optimizer(): ...", "def feed(records): ..."]
    (tmp_path / f"{file}.py").write_text("\n".join(lines))
    monkeypatch.setattr("sys.path", [*sys.path])
    section = ModelSection(
        model_zoo=tmp_path,
        model_def=f"{file}.forward",
        model_params=params,
        negative_sampling_rate=0.1,
    )
    if isinstance(found, str):
        with pytest.raises(ModelError, match=found):
            load_model_spec(section)
    else:
        given = load_model_spec(section).model()
        assert {name: value for name, value in given.items() if name != "others"} == found
