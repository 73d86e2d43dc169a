"""The notebook of the examples, executed: a job from functions and a table, scaled and asked."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOK = Path(__file__).parents[3] / "examples" / "notebook" / "first_job.ipynb"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_each_cell_of_the_notebook_does_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[2]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, 4)
    client = nbclient.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}
    )
    try:
        client.execute()
    except nbclient.exceptions.CellTimeoutError:
        for log in sorted(tmp_path.glob("jobs/*/logs/*.log")):
            print(log.name, *log.read_text().splitlines()[-20:], sep="\n")
        raise
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    shown = [data for each in outputs for out in each for data in [out.get("data", {})]]
    assert any("<progress" in data.get("text/html", "") for data in shown)
    assert "repeated=0, lost=0" in outputs[4][-1]["data"]["text/plain"]
    assert float(outputs[-1][-1]["data"]["text/plain"]) > 0.95
