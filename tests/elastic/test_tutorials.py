"""The commands of the tutorials run, in the order of their pages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("duckdb")
ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"

pytestmark = [pytest.mark.keras, pytest.mark.long, pytest.mark.timeout(600)]


def blocks(page, language):
    text = (TUTORIALS / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(script, folder):
    """Run a script where `model_zoo` is that of the repository; return what it printed."""
    (folder / "model_zoo").symlink_to(ROOT / "model_zoo")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_your_own_data(tmp_path):
    said = run("\n".join(blocks("your-own-data.md", "sh")), tmp_path)

    assert "record 0 leaves with probability" in said
    metrics = [
        float(value) for value in re.findall(r"^validation +auc ([\d.]+)", said, re.MULTILINE)
    ]
    assert len(metrics) == 2
    assert min(metrics) > 0.7


def test_your_first_model(tmp_path):
    commands, sessions = [], []
    for block in blocks("first-model.md", "console"):
        if ">>> " in block:
            sessions.append(block)
        else:
            commands += re.findall(r"^\$ ((?:.*\\\n)*.*)", block, re.MULTILINE)
    # These two are typed while a job runs, with what it has printed.
    typed = [word for word in commands if word.startswith(("grep ", "kill "))]
    assert len(typed) == 2
    session = tmp_path / "session.txt"
    session.write_text("\n".join(sessions))
    commands = [word for word in commands if word not in typed]
    commands.append(f"PYTHONPATH=model_zoo python -m doctest {session}")

    said = run("\n".join(commands), tmp_path)

    metrics = [
        float(value) for value in re.findall(r"^validation +auc ([\d.]+)", said, re.MULTILINE)
    ]
    assert len(metrics) == 3
    assert min(metrics) > 0.9
