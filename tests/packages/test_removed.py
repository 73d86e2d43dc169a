"""The core knows no package: with each of them removed, and with all, it trains as before."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import elasticdl
from elasticdl._core import RecordWriter
from elasticdl.registry import packages

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
NAMES = sorted(packages())
STRATEGIES = ("Local", "ParameterServerStrategy")
COMMANDS = f"""
import sys
from elasticdl import registry
from elasticdl.cli.main import run_command

common = [
    "train", "--model_zoo={ROOT / "model_zoo"}", "--model_def=counting.model.forward",
    "--training_data=data.recordio", "--minibatch_size=16", "--num_workers=1", "--num_ps_pods=1",
]
launchers = sys.argv[1:]
codes = [run_command(["--help"])]
for strategy in {STRATEGIES}:
    words = common[:5] if strategy == "Local" else common
    own = [f"--distribution_strategy={{strategy}}", f"--output={{strategy}}"]
    codes.append(run_command([*words, *own, f"--job_dir=job-{{strategy}}"]))
refused = [run_command([*common, f"--launcher={{name}}"]) == 2 for name in launchers]
if not registry.places("rings"):
    codes += [run_command([*common, "--distribution_strategy=HybridStrategy"]) == 0]
sys.exit(any(codes) or not all(refused))
"""


@pytest.fixture
def copied(tmp_path):
    """Copy elasticdl; return what runs Python with the copy."""
    shutil.copytree(Path(elasticdl.__file__).parent, tmp_path / "elasticdl")

    def run(*words):
        return subprocess.run(
            [sys.executable, *words],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )

    return run


ONE_BY_ONE = [pytest.param([name], id=name, marks=pytest.mark.long) for name in NAMES]


@pytest.mark.parametrize("removed", [*ONE_BY_ONE, pytest.param(NAMES, id="all")])
def test_the_core_trains_without_packages(copied, tmp_path, removed):
    for name in removed:
        shutil.rmtree(tmp_path / "elasticdl" / "packages" / name)
    with RecordWriter(str(tmp_path / "data.recordio")) as writer:
        writer.write_many(b"%d %d" % (i % 7, i % 5) for i in range(256))
    launchers = [launcher for name in removed for launcher in packages()[name].launchers]
    done = copied("-c", COMMANDS, *launchers)
    assert done.returncode == 0, done.stderr
    for launcher in launchers:
        assert f"no package here brings a launcher {launcher}" in done.stderr
    listed = set(re.findall(r"^│ (\w+) ", done.stdout, re.MULTILINE))
    gone = {command for name in removed for command in packages()[name].commands}
    left = {command for each in packages().values() for command in each.commands} - gone
    assert {"train", *left} <= listed
    assert not gone & listed
    for strategy in STRATEGIES:
        with np.load(tmp_path / strategy / "model.npz") as arrays:
            assert arrays["table/count/rows"][:, 0].sum() == 512


USE = """
import importlib, sys
for module in sys.argv[1:]:
    try:
        used = importlib.import_module(module)
        [getattr(used, name) for name in used.__all__]
    except ImportError as error:
        print(error)
"""


def test_a_module_of_a_package_that_was_removed_names_the_package(copied, tmp_path):
    modules = {each: name for name, package in packages().items() for each in package.modules}
    for package in set(modules.values()):
        shutil.rmtree(tmp_path / "elasticdl" / "packages" / package)
    told = copied("-c", USE, *modules).stdout.splitlines()
    for line, (module, package) in zip(told, modules.items(), strict=True):
        assert line.startswith(f"{module}: expected the package '{package}'")


def test_imports_of_the_core_are_those_of_its_layers_without_packages(copied, tmp_path):
    shutil.rmtree(tmp_path / "elasticdl" / "packages")
    text = (ROOT / "pyproject.toml").read_text().replace('  "packages",\n', "")
    contracts = text.split("[[tool.importlinter.contracts]]")
    kept = [each for each in contracts if "elasticdl.packages" not in each]
    (tmp_path / "pyproject.toml").write_text("[[tool.importlinter.contracts]]".join(kept))
    done = copied("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")
    assert done.returncode == 0, done.stdout
