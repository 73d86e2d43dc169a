import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.slices import slice_of

ROOT = Path(__file__).resolve().parents[3]

GROUPS = ["a"] * 7 + ["b"] * 5 + [f"c{n}" for n in range(10)]


def test_each_group_is_in_one_slice_and_slices_have_as_many_tests():
    slices = [slice_of(GROUPS, number, 3) for number in range(3)]

    assert sorted(group for part in slices for group in part) == sorted(set(GROUPS))
    assert [sum(GROUPS.count(group) for group in part) for part in slices] == [8, 7, 7]


def test_a_slice_is_the_same_in_whatever_order_tests_are_found():
    assert slice_of(reversed(GROUPS), 1, 3) == slice_of(GROUPS, 1, 3)


def test_a_slice_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="from 0 to 3, found 4"):
        slice_of(GROUPS, 4, 4)


SHARING = """
import os, pathlib, pytest

@pytest.fixture(scope="module")
def made():
    pathlib.Path(f"made-by-{os.getpid()}").touch()

@pytest.mark.parametrize("number", range(6))
def test_asks(number, made): pass
"""


def test_tests_that_share_what_a_fixture_makes_run_in_one_process(tmp_path, monkeypatch):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "test_sharing.py").write_text(SHARING)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    words = ["--numprocesses=2", "--dist=loadgroup", "-p", "no:cacheprovider"]
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=tmp_path, check=True, timeout=200)
    assert len(list(tmp_path.glob("made-by-*"))) == 1
