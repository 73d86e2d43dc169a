"""Deferred modules are loaded once, when something of them is asked for, and are then as others."""

import inspect
import sys
import threading
from itertools import count

import pytest

from elasticdl.packages.keras.deferred import defer

_numbers = count()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package with parts that tell when they are loaded; return its name."""
    name = f"gallery_{next(_numbers)}"
    folder = tmp_path / name
    (folder / "frames").mkdir(parents=True)
    (folder / "__init__.py").write_text(f"loaded = []\nfrom {name} import frames, prints\n")
    tell = f"import {name}\n{name}.loaded.append(__name__.partition('.')[2])\n"
    (folder / "prints.py").write_text(f"{tell}def show():\n    return 'print'\n")
    (folder / "frames" / "__init__.py").write_text(f"{tell}from {name}.frames.oak import show\n")
    (folder / "frames" / "oak.py").write_text(f"{tell}def show():\n    return 'oak'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    defer([f"{name}.prints", f"{name}.etchings"])
    defer([f"{name}.frames"])
    yield name
    for other in [other for other in sys.modules if other.partition(".")[0] == name]:
        del sys.modules[other]


def test_a_module_is_loaded_when_something_of_it_is_asked_for(package):
    gallery = __import__(package)
    assert gallery.loaded == []
    assert gallery.prints.show() == "print"
    assert gallery.loaded == ["prints"]
    assert sys.modules[f"{package}.prints"] is gallery.prints
    assert "show" in dir(gallery.frames)


def test_who_looks_through_all_modules_loads_none(package):
    gallery = __import__(package)
    assert gallery.prints.__file__.endswith("prints.py")
    assert inspect.ismodule(gallery.frames)
    assert not hasattr(gallery.frames, "__warningregistry__")
    assert gallery.loaded == []


def test_parts_of_a_deferred_package_can_be_imported(package):
    gallery = __import__(f"{package}.frames.oak")
    assert gallery.loaded == ["frames.oak"]
    assert gallery.frames.oak.show() == "oak"
    assert gallery.frames.show() == "oak"
    assert gallery.loaded == ["frames.oak", "frames"]
    assert gallery.frames.oak.show is gallery.frames.show


def test_all_of_a_module_can_be_imported(package):
    names = {}
    exec(f"from {package}.frames import *", names)
    assert names["show"]() == "oak"


def test_who_has_the_stand_in_has_what_others_have(package):
    early = __import__(package).frames
    late = sys.modules[f"{package}.frames"]
    assert early.show is late.show is sys.modules[f"{package}.frames"].show


def test_threads_that_ask_at_once_load_it_once(package):
    stand_in, answers = __import__(package).frames, []
    together = threading.Barrier(8)

    def ask():
        together.wait(timeout=30)
        answers.append(stand_in.show())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert answers == ["oak"] * 8
    assert __import__(package).loaded == ["frames", "frames.oak"]


def test_a_module_that_is_not_there_is_missed_as_ever(package):
    with pytest.raises(ModuleNotFoundError, match="etchings"):
        exec(f"import {package}.etchings", {})
    with pytest.raises(AttributeError, match="draw"):
        _ = __import__(package).prints.draw
