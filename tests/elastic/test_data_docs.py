"""Every command of docs/data.md runs, in the order of the page."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("pyarrow", "duckdb", "sqlalchemy"):
    pytest.importorskip(package)
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/data.md"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_command_of_the_page_runs(tmp_path):
    (tmp_path / "model_zoo").symlink_to(ROOT / "model_zoo")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 3

    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert "left out: damaged.txt: line 100: column label: expected 0 or 1" in done.stderr
    assert {"train", "val"} < {path.name for path in (tmp_path / "dac_records").iterdir()}
