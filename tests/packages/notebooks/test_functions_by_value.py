"""Functions with their values in a file: what other processes get of them, and what is refused."""

import enum
import functools
import importlib.util
import os
import pickle
import subprocess
import sys
import threading
import types

import pytest

from elasticdl.errors import ModelError
from elasticdl.packages.notebooks import by_value, functions, functions_file

HELPERS = """
import threading
LOCK = threading.Lock()
RATE = 1

def scaled(x):
    return x * RATE

def set_rate(rate):
    global RATE
    RATE = rate
"""

CELLS = """
import functools
import math as m
import helpers
from helpers import scaled

SIZE, Y = 3, [1, 2]

class Net:
    width = SIZE

    def __init__(self):
        self.depth = 2

    def size(self):
        return self.width * self.depth

def count(size=SIZE):
    return size

def of_y(Y, more=1):  # a parameter with the name of a global
    return Y + more

def round(x):
    return x + 1

def marked():
    return round(2.4)

marked.is_batched = True

def maker(number):
    def inner():
        return number
    return inner

values = lambda: (count(), Net().size(), of_y(4), m.sqrt(SIZE), len(Y), maker(5)(), net.depth)
partly = functools.partial(of_y, more=10)
net = Net()

def of_helpers(rate):
    before = helpers.scaled(2), scaled(2)
    helpers.set_rate(rate)
    return *before, helpers.RATE, scaled(2)

def locked():
    return helpers.LOCK

def of_record(record):
    return helpers.scaled(record.LOCK)

SIZE, Net.width, helpers.RATE, net.depth = 16, 8, 7, 9
"""


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """A module as a notebook has it, beside a file of the user's; values have changed since."""
    modules = {}
    for name, text in [("helpers", HELPERS), ("cells", CELLS)]:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        modules[name] = types.ModuleType(name)
        modules[name].__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, modules[name])
        exec(compile(text, str(path), "exec"), vars(modules[name]))
    return modules["cells"]


def written(tmp_path, **given):
    folder = tmp_path / "inputs"
    folder.mkdir(exist_ok=True)
    return functions.write(folder, given)


def files_beside(path):
    """Return the files of a model file's folder, which has a folder of bytecode too."""
    return [each for each in path.parent.iterdir() if each.is_file()]


def loaded(path):
    spec = importlib.util.spec_from_file_location("written", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_another_process_has_the_values_of_now_and_not_those_of_the_source(cells, tmp_path):
    path = written(tmp_path, values=cells.values, partly=cells.partly, of_helpers=cells.of_helpers)
    code = (
        "import inspect, model; print(model.values(), model.partly(4), model.of_helpers(100)); "
        "print(inspect.getsource(model.partly.func))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": f"{path.parent}:{os.getcwd()}"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.stderr == ""
    # The class was changed after its instance was made, and the default was taken before.
    expected = (3, 16, 5, 4.0, 2, 5, 9)
    assert done.stdout.splitlines()[0] == f"{expected} 14 (14, 14, 100, 200)"
    assert cells.values() == expected
    assert "a parameter with the name of a global" in done.stdout
    assert {each.stat().st_mode & 0o777 for each in files_beside(path)} == {0o600}


def test_what_is_loaded_beside_the_program_leaves_its_classes_and_modules_alone(cells, tmp_path):
    path = written(tmp_path, net=cells.Net, of_helpers=cells.of_helpers, marked=cells.marked)
    cells.Net.width = 99
    module = loaded(path)
    assert (module.net.width, cells.Net.width) == (8, 99)
    assert (module.marked(), module.marked.is_batched) == (3.4, True)
    module.of_helpers(100)
    assert sys.modules["helpers"].RATE == 7


def test_what_pip_has_put_into_a_folder_of_its_own_goes_by_its_name(cells, tmp_path):
    assert by_value.is_own("cells.of_nobody")
    assert by_value.is_own("helpers")
    by_value._is_installed.cache_clear()
    (tmp_path / "helpers-1.0.dist-info").mkdir()
    assert not by_value.is_own("helpers")
    by_value._is_installed.cache_clear()


class Colour(enum.Enum):
    RED = 1


def test_classes_stay_the_same_among_each_other(tmp_path):
    path = written(tmp_path, red=lambda: Colour.RED, kind=Colour)
    module = loaded(path)
    assert module.red() is module.kind.RED


def of_default(given=None, lock=threading.Lock()):  # noqa: B008
    return lock


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (threading.Lock(), r"inner uses value, which is a lock .*cannot pickle"),
        ((number for number in range(3)), r"inner uses value, which is a generator"),
        (open(os.devnull), r"inner uses value, which is a TextIOWrapper .*an open file"),  # noqa: SIM115
        ({"deep": [threading.Lock()]}, r"inner uses value, which is a dict"),
        (of_default, r"of_default uses lock, which is a lock"),
    ],
    ids=["a lock", "a generator", "a file", "a lock in a dict", "a default"],
)
def test_what_no_other_process_can_have_is_refused_by_the_name_of_its_variable(
    value, words, tmp_path
):
    def inner():
        return value

    with pytest.raises(ModelError, match=words):
        written(tmp_path, forward=lambda: inner())
    assert list((tmp_path / "inputs").iterdir()) == []


def test_a_value_of_a_module_is_missed_only_by_those_who_use_it(cells, tmp_path):
    with pytest.raises(ModelError, match=r"locked uses helpers\.LOCK, which is a lock"):
        written(tmp_path, locked=cells.locked)
    written(tmp_path, of_helpers=cells.of_helpers, of_record=cells.of_record)


def test_values_of_enormous_size_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(by_value, "MAX_BYTES", 1 << 20)
    frame = bytes(2 << 20)
    with pytest.raises(ModelError, match=r"uses frame, which is a bytes .*more than 1 MiB"):
        written(tmp_path, forward=lambda: frame)


class Ran:
    def __reduce__(self):
        return functools.partial(setattr, Ran, "did"), (True,)


def _other_content(path):
    (content,) = path.parent.glob("*.pickle")
    content.write_bytes(pickle.dumps(Ran()))


def _writable(path):
    (content,) = path.parent.glob("*.pickle")
    content.chmod(0o666)


def _other_python(path):
    path.write_text(path.read_text().replace("'{}.{}'".format(*sys.version_info), "'3.9'"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other_content, "expected the functions that elasticdl.train has written"),
        (_writable, "expected mode 0600, found 0666"),
        (_other_python, r"expected Python 3\.9"),
        (lambda path: next(path.parent.glob("*.pickle")).unlink(), "No such file"),
    ],
    ids=["other content", "mode", "Python", "none"],
)
def test_what_is_not_proved_is_not_loaded(change, words, tmp_path):
    path = written(tmp_path, forward=lambda: 3)
    change(path)
    with pytest.raises(ModelError, match=words):
        loaded(path)
    assert not hasattr(Ran, "did")


def test_a_process_of_a_job_loads_only_what_was_there_when_the_job_was_started(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(functions_file, "_trusted", None)
    job_dir, token = tmp_path / "job", b"of this job"
    job_dir.mkdir()
    path = written(tmp_path, forward=lambda: 3)
    functions_file.prove(path.parent, job_dir, token)
    functions_file.trust(job_dir, b"of another job")
    with pytest.raises(ModelError, match="expected functions that were there when the job was"):
        loaded(path)
    functions_file.trust(job_dir, token)
    assert loaded(path).forward() == 3
    written(tmp_path, forward=lambda: 4)  # by another program, with a model file that fits
    with pytest.raises(ModelError, match="start the job again from Python"):
        loaded(path)
    functions_file.prove(path.parent, job_dir, token)
    assert loaded(path).forward() == 4


def test_functions_that_are_written_again_take_the_place_of_those_before(tmp_path):
    path = written(tmp_path, forward=lambda: 3)
    assert loaded(path).forward() == 3  # Python keeps its bytecode, of the same second and size
    again = written(tmp_path, forward=lambda: 4)
    assert (again, loaded(again).forward(), len(files_beside(path))) == (path, 4, 2)


def test_what_ipython_has_put_among_the_names_is_as_it_is_without_a_notebook(tmp_path):
    def made(name):
        thing = types.FunctionType((lambda *given: given).__code__, {}, name)
        thing.__module__ = "IPython.core.interactiveshell"
        return thing

    kind = type("Shell", (), {"__module__": "ipykernel.zmqshell", "get_ipython": made})
    opened, shell = made("open"), kind().get_ipython
    shell.__func__.__name__ = "get_ipython"
    module = loaded(written(tmp_path, forward=lambda: (opened, shell())))
    assert module.forward() == (open, None)
