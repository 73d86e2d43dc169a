"""The wheel of `make wheel` is all that a fresh Python needs."""

import json
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
pytestmark = [pytest.mark.images, pytest.mark.timeout(1200)]
NUM_RECORDS = 100


def interpreter(version):
    """Return a Python of this version that runs here, or skip the test."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    shims = (
        shutil.which(f"python{version}"),
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
    )
    for found in filter(None, shims):
        if subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return found
    pytest.skip(f"no Python {version} runs here")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_wheel_installs_into_a_fresh_environment_without_rust_and_trains(
    version, wheel, tmp_path
):
    subprocess.run([interpreter(version), "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", wheel], check=True)
    (tmp_path / "train.txt").write_text("7\n" * NUM_RECORDS)
    alone = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}  # no Rust, and nothing of this tree

    def run(*words):
        return subprocess.run(
            [programs / "elasticdl", *words],
            cwd=tmp_path,
            env=alone,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    assert "train" in run("--help")
    run(
        *("train", f"--model_zoo={ROOT / 'model_zoo'}", "--model_def=counting.model.forward"),
        *("--training_data=train.txt", "--num_epochs=1", "--summary=summary.json"),
    )
    ledger = json.loads((tmp_path / "summary.json").read_text())["ledger"]
    assert [epoch["trained_once"] for epoch in ledger] == [NUM_RECORDS]


def test_the_wheel_is_for_any_python_and_for_an_old_glibc(wheel):
    tags = wheel.name.removesuffix(".whl").split("-")[2:]
    assert tags == ["cp311", "abi3", f"manylinux_2_28_{platform.machine()}"]


def test_the_wheel_has_the_files_of_the_page_and_nothing_of_the_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tracked = subprocess.run(
        ["git", "ls-files", "elasticdl"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    assert set(tracked) - set(names) == set()
    page = {name for name in names if name.startswith("elasticdl/packages/page/assets/")}
    for name in ("index.html", "main.js", "page.css", "uPlot.iife.min.js", "uPlot.LICENSE"):
        assert f"elasticdl/packages/page/assets/{name}" in page
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "scripts/"))]
