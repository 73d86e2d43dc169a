"""The page in one file: nothing is asked of anybody, and names cannot become code."""

import json
import re

from elasticdl.observe.history.board import board
from elasticdl.observe.history.fold import History
from elasticdl.observe.report import html

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
