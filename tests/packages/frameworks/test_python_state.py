"""A change that a callback makes among the globals of a model file is noticed, and nothing else."""

import importlib
import types

import numpy as np
import pytest

from elasticdl.backends.base import CallbackNeeds
from elasticdl.errors import SideEffectError
from elasticdl.job import CallbackCall, Moment, MomentKind
from elasticdl.packages.frameworks.callback_memory import CallbackMemory
from elasticdl.packages.frameworks.callbacks import Callback
from elasticdl.packages.frameworks.job_callbacks import JobCallbacks
from elasticdl.packages.frameworks.python_state import (
    PythonState,
    check_unchanged,
    globals_now,
    globals_of,
)


class Variable:
    """As Keras' and TensorFlow's are, for what is looked at."""

    shape = ()

    def __init__(self, value):
        self.value = np.float32(value)

    def numpy(self):
        return self.value


class Settings:
    """Of the model file."""

    beta = 0.0


class Remembering:
    """A callback, whose attributes go from worker to worker."""

    count = 0

    def on_epoch_end(self, epoch, logs):
        """Count."""
        self.count += 1


def names():
    found = {
        "__name__": __name__,
        "beta": Variable(0.0),
        "step": 1,
        "weights": {"a": [Variable(1.0), 2]},
        "seen": [],
        "table": np.zeros(3),
        "space": types.SimpleNamespace(rate=1.0),
        "Settings": Settings,
        "settings": Settings(),
        "callback": Remembering(),
        "nothing": float("nan"),
        "np": np,
        "names": names,
    }
    return found


CHANGES = {
    "beta": lambda n: setattr(n["beta"], "value", np.float32(1)),
    "step": lambda n: n.update(step=2),
    "weights": lambda n: setattr(n["weights"]["a"][0], "value", np.float32(3)),
    "seen": lambda n: n["seen"].append(1),
    "table": lambda n: n["table"].__setitem__(1, 5.0),
    "space": lambda n: setattr(n["space"], "rate", 0.5),
    "settings": lambda n: setattr(n["settings"], "beta", 1.0),
    "another": lambda n: n.update(another=1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_global_is_refused_by_its_name(name):
    namespace = names()
    before = globals_now(namespace)
    check_unchanged(before, namespace)
    CHANGES[name](namespace)
    with pytest.raises(SideEffectError, match=f"changes .*{name}.* of the model file"):
        check_unchanged(before, namespace)


def test_an_attribute_of_a_class_of_the_file_is_one_of_its_globals(monkeypatch):
    namespace = names()
    before = globals_now(namespace)
    monkeypatch.setattr(Settings, "beta", 2.0)
    with pytest.raises(SideEffectError, match=r"Settings\.beta"):
        check_unchanged(before, namespace)


def test_another_file_of_the_users_counts_as_the_model_file_does(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raising.py").write_text("import weighing\n\ndef callbacks():\n    pass\n")
    (tmp_path / "weighing.py").write_text("import raising\nbeta = 0.0\n")
    raising = importlib.import_module("raising")
    namespace = {**names(), "callbacks": raising.callbacks}
    before = globals_now(namespace)
    check_unchanged(before, namespace)
    monkeypatch.setattr(raising.weighing, "beta", 1.0)
    with pytest.raises(SideEffectError, match=r"changes weighing\.py: beta of the model file"):
        check_unchanged(before, namespace)


class Raising:
    """Settings whose attributes are the keys of a dict."""

    def __init__(self):
        self.__dict__["rate"] = 0.1

    def __getattr__(self, name):
        raise KeyError(name)


class Endless:
    """Settings that make each attribute when it is asked for."""

    num_made = 0

    def __getattr__(self, name):
        Endless.num_made += 1
        assert Endless.num_made < 1_000
        return Endless()


class Keys(dict):
    __getattr__ = dict.__getitem__


VALUES = {
    "raising": Raising(),
    "endless": Endless(),
    "keys": Keys(rate=0.1),
    "no time": np.datetime64("NaT"),
    "times": np.array(["NaT", "2020-01-01"], "datetime64[D]"),
    "structure": np.array([(1, np.nan)], [("a", np.int32), ("b", np.float32)]),
    "complex": complex("nan"),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_any_kind_may_stand_in_the_file_and_equals_itself(name):
    value = VALUES[name]
    namespace = {**names(), "value": value}
    before = globals_now(namespace)
    check_unchanged(before, namespace)
    again = PythonState({"value": value})
    assert PythonState({"value": value}).differences(again) == []


def test_what_a_callback_remembers_is_its_own():
    namespace = names()
    before = globals_now(namespace)
    namespace["callback"].on_epoch_end(0, {})
    check_unchanged(before, namespace)


def test_the_globals_are_those_of_the_file_of_a_function():
    assert globals_of(names)["Settings"] is Settings
    assert globals_of(None) == {}


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_callback_may_change_the_model_file_where_no_other_process_would_miss_it(is_alone):
    namespace = names()

    class Changing(Callback):
        def on_train_begin(self):
            namespace["another"] = 1

    needs = CallbackNeeds("", namespace=namespace)
    called = JobCallbacks(
        lambda: [Changing()], 0.1, lambda callback, job: callback, CallbackMemory(), needs
    )
    call = CallbackCall("", None, Moment(MomentKind.TRAIN_BEGIN), 1)
    if is_alone:
        assert called.run(call, is_alone=True).stop == ""
    else:
        with pytest.raises(SideEffectError, match=r"changes .*another of the model file"):
            called.run(call, is_alone=False)
