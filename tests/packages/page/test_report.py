"""The page in one file: nothing is asked of anybody, and names cannot become code."""

import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from elasticdl.errors import ConfigError
from elasticdl.job.status import no_status
from elasticdl.packages.page.document import html
from elasticdl.packages.page.history.board import board
from elasticdl.packages.page.history.fold import History
from elasticdl.packages.page.report_command import report, with_end
from tests.packages.page.test_history import BEGAN, beats, fact

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'


def page(*events, config=None):
    return html(board(History.of(events), config=config))


def test_file_names_nothing_outside_itself():
    text = page()
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert "default-src 'none'" in text
    assert "connect-src" not in text


def test_hostile_names_stay_inside_the_data():
    told = {"time": 1.0, "role": "master", "index": 0, "event": HOSTILE, "text": HOSTILE}
    text = page(told, config={"model": {HOSTILE: HOSTILE}})
    assert "alert(1)</script>" not in text
    held = re.search(r'<script type="application/json" id="job-data">(.*?)</script>', text)[1]
    data = json.loads(held)
    assert data["facts"][0]["text"] == HOSTILE
    assert data["config"]["model"] == {HOSTILE: HOSTILE}


def test_every_script_is_named_by_its_hash():
    text = page()
    scripts = re.findall(r"<script>", text)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.count("sha256-") == len(scripts) + len(re.findall(r"<style>", text))


def test_a_job_whose_processes_wrote_no_end_is_shown_as_it_ended():
    told = {"time": 7.0, "role": "master", "index": 0, "event": "phase", "phase": "training"}
    log = board(History.of([told]))
    stopped = replace(no_status("job", 0), status="stopped", message="its processes were killed")
    shown = with_end(log, stopped)
    assert (shown["phase"], shown["ended"]) == ("stopped", 7.0)
    assert shown["message"] == "its processes were killed"
    assert with_end(log, None) is log  # it goes on
    over = {**log, "ended": 6.0}
    assert with_end(over, stopped) is over


def test_brackets_in_what_a_job_says_are_printed_as_they_are(tmp_path):
    failed = "worker 1 failed a task: [/data/a.csv] has no column [user_id]"
    cause = fact(BEGAN + 20.2, "lost", failed, process="worker 1", reason="killed")
    slow = beats(60, lambda s: "wait for parameters" if 21 <= s <= 25 else "train")
    (tmp_path / "events").mkdir()
    lines = [json.dumps(event) for event in (*slow, cause)]
    (tmp_path / "events" / "worker-0.jsonl").write_text("\n".join(lines) + "\n")

    told = CliRunner().invoke(report, [str(tmp_path)], terminal_width=300, env={"COLUMNS": "300"})

    assert told.exit_code == 0, told.exception
    assert failed in told.output


@pytest.mark.parametrize("flag", ["--html", "--svg"])
def test_a_place_that_cannot_be_written_is_named(tmp_path, flag):
    pytest.importorskip("matplotlib")
    (tmp_path / "events").mkdir()
    lines = [json.dumps(event) for event in beats(20)]
    (tmp_path / "events" / "worker-0.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "folder" / "loss.svg").mkdir(parents=True)
    (tmp_path / "folder" / "report.html").mkdir()
    (tmp_path / "file").touch()

    for output in (tmp_path / "folder", tmp_path / "file" / "below"):
        told = CliRunner().invoke(report, [str(tmp_path), flag, f"--output={output}"])

        assert isinstance(told.exception, ConfigError)
        assert f"{output}" in str(told.exception)
