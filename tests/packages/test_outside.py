"""A package of another distribution brings a launcher, which is chosen by its name."""

import os
import subprocess
import sys
from pathlib import Path

from elasticdl._core import RecordWriter

ROOT = Path(__file__).parents[2]
FILES = {
    "yarn-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: yarn\nVersion: 1\n",
    "yarn-1.dist-info/entry_points.txt": "[elasticdl.packages]\nyarn = of_yarn\n",
    "of_yarn.py": """
from elasticdl.registry import Package
from elasticdl.settings.launcher import LauncherFacts

PACKAGE = Package(launchers={"yarn": "of_yarn:YARN"})
YARN = LauncherFacts(
    parts="parts_of_yarn:PARTS", title="YARN", description="a YARN cluster", place="a container"
)
""",
    "parts_of_yarn.py": """
from elasticdl.errors import LaunchError
from elasticdl.launchers.parts import LauncherParts


class Parts(LauncherParts):
    def submitter(self):
        return self

    def submit(self, config, is_tied):
        strategy = config.training.distribution_strategy
        raise LaunchError(f"YARN was asked for {config.cluster.job_name}, {strategy}")

    def launcher(self, config, job_dir, on_event, authority):
        raise NotImplementedError


PARTS = Parts()
""",
}


def test_a_launcher_of_another_distribution_is_asked_for_a_job(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with RecordWriter(str(tmp_path / "data.recordio")) as writer:
        writer.write_many([b"1 1"])
    paths = (str(tmp_path), os.environ.get("PYTHONPATH", ""))

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "elasticdl.cli.main", *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=250,
        )

    words = (f"--model_zoo={ROOT / 'model_zoo'}", "--model_def=counting.model.forward")
    words += ("--training_data=data.recordio", "--job_name=mine")
    asked = run("train", *words, "--launcher=yarn")
    assert "YARN was asked for mine, ParameterServerStrategy" in asked.stderr
    refused = run("train", *words, "--launcher=yarn", "--metrics_port=0")
    assert "with --launcher=yarn the processes of a job have no port" in refused.stderr
