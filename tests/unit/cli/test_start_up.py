"""What TensorFlow prints when it is imported does not reach the user; anything else does."""

import os
import subprocess
import sys

import pytest

NOISE = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    "I0000 00:00:17.6 7 port.cc:153] oneDNN custom operations are on. You may see slightly\n"
)
PROGRAM = """
from elasticdl.runtime.start_up import quiet_tensorflow
quiet_tensorflow()
import gc
try:
    import tensorflow
finally:
    assert gc.isenabled()
assert tensorflow.__spec__.loader.get_source("tensorflow")
import os
os.write(2, b"after\\n")
"""


@pytest.fixture
def start(tmp_path):
    """Import a package that is called TensorFlow, and says and does this; return (code, stderr)."""

    def run(end="", **environment):
        source = f"import os\nos.write(2, {NOISE!r}.encode())\nos.write(2, b'a line\\n')\n{end}\n"
        (tmp_path / "tensorflow.py").write_text(source)
        variables = {n: v for n, v in os.environ.items() if n != "TF_CPP_MIN_LOG_LEVEL"}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**variables, "PYTHONPATH": str(tmp_path), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stderr

    return run


def test_lines_of_the_start_are_left_out_and_others_come_through(start):
    assert start() == (0, "a line\nafter\n")


def test_who_asks_for_all_lines_gets_them(start):
    code, stderr = start(TF_CPP_MIN_LOG_LEVEL="0")
    assert code == 0
    assert "oneDNN" in stderr


def test_what_is_said_before_a_crash_comes_through(start):
    code, stderr = start("os.write(2, b'no AVX here\\n'); os.abort()")
    assert code < 0
    assert "no AVX here" in stderr


def test_nothing_looks_for_garbage_meanwhile(start):
    assert start("import gc\nassert not gc.isenabled()") == (0, "a line\nafter\n")


def test_an_import_that_fails_is_told(start):
    code, stderr = start("raise ImportError('a library is missing')")
    assert code == 1
    assert "a library is missing" in stderr
