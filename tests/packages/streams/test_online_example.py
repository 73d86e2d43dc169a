"""The example of online learning, before it starts anything."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "online" / "run.py"


def test_a_folder_of_others_is_not_removed(tmp_path):
    (tmp_path / "thesis.txt").write_text("all of it")
    command = [sys.executable, str(EXAMPLE), f"--folder={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == (
        f"--folder: expected a new folder, or one of this example, found {tmp_path}\n"
    )
    assert (tmp_path / "thesis.txt").exists()
