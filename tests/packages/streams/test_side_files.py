"""Messages that cannot be read, in files beside the job (packages/streams/side_files.py)."""

import json

import pytest

from elasticdl.data.base import Aside
from elasticdl.errors import DataError
from elasticdl.job import Shard
from elasticdl.locations import parse
from elasticdl.packages.streams import side_files

SHARD = Shard("my-clicks-3", 20, 30)
MESSAGES = [Aside(21, "no JSON object", b"\xff"), Aside(29, "it is not", b"")]


@pytest.mark.parametrize("url", ["", "memory://side-files"])
def test_a_task_that_is_read_again_writes_the_same_file(tmp_path, url):
    folder = parse(url or str(tmp_path / "new" / "bad"))
    for _ in range(2):
        side_files.write(folder, SHARD, MESSAGES)
    (file,) = folder.iterdir()
    assert file.name == "my-clicks-3-20-30.jsonl"
    topic = {"topic": "my-clicks", "partition": 3}
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {**topic, "offset": 21, "why": "no JSON object", "value": "/w=="},
        {**topic, "offset": 29, "why": "it is not", "value": ""},
    ]


def test_what_cannot_be_written_is_told_and_tried_again(tmp_path):
    (tmp_path / "bad").write_text("a file where a folder should be")
    with pytest.raises(
        DataError, match=r"my-clicks-3: 2 of its messages.*bad_message_dir"
    ) as raised:
        side_files.write(tmp_path / "bad", SHARD, MESSAGES)
    assert not raised.value.is_certain
