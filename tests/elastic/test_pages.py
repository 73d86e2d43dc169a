"""The commands of pages run as they stand there, in the order of their page."""

import re

import pytest

from tests.elastic.page_scripts import ROOT, commands_to_run, run

for package in ("pyarrow", "duckdb", "sqlalchemy"):
    pytest.importorskip(package)

pytestmark = [pytest.mark.keras, pytest.mark.long, pytest.mark.timeout(600)]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


def auc(said):
    """Return each AUC on validation data that was printed."""
    return [float(value) for value in re.findall(r"^validation +.*?auc ([\d.]+)", said, re.M)]


def test_readme(tmp_path):
    made = ["PYTHONPATH=model_zoo python -m flights.prepare --output=demo/data"]
    said = run("\n".join(made + commands_to_run("README.md")), tmp_path)
    assert auc(said) == pytest.approx([0.80] * 2, abs=0.01)  # of the job, and of its export


def test_the_program_of_the_readme(tmp_path):
    (tmp_path / "program.py").write_text("\n".join(blocks("README.md", "python")))
    assert min(auc(run("python program.py", tmp_path))) > 0.9


def test_simulate(tmp_path):
    made = ["PYTHONPATH=model_zoo python -m flights.prepare --output=demo/data"]
    said = run("\n".join(made + commands_to_run("docs/simulate.md")), tmp_path)
    assert said.count("bottleneck") >= 2
    assert (tmp_path / "job.svg").exists()


def test_install(tmp_path):
    assert "elasticdl" in run("\n".join(commands_to_run("docs/install.md")), tmp_path)


@pytest.mark.parametrize("model", ["lr", "din", "iris", "dac_ctr", "criteo"])
def test_model_zoo(tmp_path, model):
    script = "\n".join(commands_to_run(f"model_zoo/{model}/README.md"))
    script = re.sub(r"--num_records=\d+", "--num_records=20000", script)
    run(script.replace("/tmp/criteo", "criteo"), tmp_path)


def test_your_own_data(tmp_path):
    said = run("\n".join(blocks("docs/tutorials/your-own-data.md", "sh")), tmp_path)
    assert "record 0 leaves with probability" in said
    assert len(auc(said)) == 2
    assert min(auc(said)) > 0.7


def test_your_first_model(tmp_path):
    commands, sessions = [], []
    for block in blocks("docs/tutorials/first-model.md", "console"):
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
    assert len(auc(said)) == 3
    assert min(auc(said)) > 0.9


def test_data(tmp_path):
    said = run("\n".join(blocks("docs/data.md", "sh")), tmp_path)
    assert "left out: damaged.txt: line 100: column label: expected 0 or 1" in said
    assert {"train", "val"} < {path.name for path in (tmp_path / "dac_records").iterdir()}
