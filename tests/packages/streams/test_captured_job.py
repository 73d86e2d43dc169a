"""Jobs on a source that cannot be cut into ranges: each record is trained once, over any kills."""

import contextlib
import itertools
import os
import sys
import threading

import numpy as np
import psutil
import pytest

from scripts.chaos import job as counting
from tests.elastic.running_job import LOOK_SECONDS, RunningJob

PRINTS = """
import pathlib, sys, time
most = pathlib.Path({most!r})
for number in range({num_records}):
    ids = (number, number * 7, number * 11)
    print(*(each % {num_ids} for each in ids), number % 3, flush=number % 100 == 0)
    if number % 500 == 0:
        while most.exists() and number >= int(most.read_text() or 0):
            time.sleep(0.02)
"""
READER = """
from counting.staged import *


class Numbers:
    def __init__(self, path, limit):
        self.lines, self.limit, self.at = open(path), limit, 0

    def read(self):
        for line in self.lines:
            self.at += len(line)
            yield line.rstrip()

    def state(self):
        return self.at

    def restore(self, state):
        self.at = state
        self.lines.seek(state)


def custom_data_reader(data_path, limit):
    return Numbers(data_path, limit)
"""


WORDS = {"source": "elasticdl.packages.streams.capture", "command": "prints.py"}


class CapturedJob(RunningJob):
    """The counting job on a source of its own."""

    def __init__(self, folder, num_records, PYTHONPATH="", **flags):
        self.num_records = num_records
        given = {"num_epochs": 1, "num_workers": 2, "num_ps_pods": 2, "training_data": "", **flags}
        places = (folder / "export", folder / "job", folder / "summary.json")
        words = counting.train_command("", *places, **given)
        words = [word for word in words if not word.endswith("=None")]
        super().__init__(folder, words, env={**os.environ, "PYTHONPATH": str(PYTHONPATH)})

    def strike(self, role):
        """Kill a process: of a role, or the one that reads the source, or its command."""
        while not (found := list(self._of(role))):
            assert self.is_running(), self.log()
            threading.Event().wait(LOOK_SECONDS)
        with contextlib.suppress(psutil.NoSuchProcess):
            found[0].kill()

    def _of(self, role):
        if role not in WORDS:
            return self.processes(role)
        with contextlib.suppress(psutil.NoSuchProcess):
            return [
                each
                for master in self.processes("master")
                for each in master.children(recursive=True)
                if WORDS[role] in " ".join(each.cmdline()[1:3])
            ]
        return []

    def check(self, summary):
        """Each record counts once: by the model, and by the ledger."""
        (line,) = summary["ledger"]
        assert (line["records"], line["trained_once"]) == (self.num_records,) * 2
        assert (line["repeated"], line["lost"]) == (0, 0)
        counts = counting.counts_of(self.folder / "export")
        np.testing.assert_array_equal(counts, occurrences(self.num_records))
        assert not (self.job_dir / "captured").exists()


def occurrences(num_records):
    """Return how often each id is printed."""
    numbers = np.arange(num_records)
    ids = np.stack([numbers, numbers * 7, numbers * 11]) % counting.NUM_IDS
    return np.bincount(np.concatenate([ids.ravel(), numbers % 3]), minlength=counting.NUM_IDS)


def command_of(folder, num_records):
    """Return a command that prints records, through a pipe: as many as the file `most` allows."""
    script, most = folder / "prints.py", str(folder / "most")
    named = {"num_records": num_records, "num_ids": counting.NUM_IDS, "most": most}
    script.write_text(PRINTS.format(**named))
    return f"{sys.executable} {script} | cat"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_twenty_kills_of_whoever_takes_part(tmp_path):
    num_records = 60_000
    command = command_of(tmp_path, num_records)
    (tmp_path / "most").write_text("0")
    roles = itertools.cycle(["worker", "source", "ps", "command", "master"])
    flags = {"recovery_seconds": 1, "max_staleness": 3}
    moves = {5: 3, 10: 1, 15: 2}
    with CapturedJob(tmp_path, num_records, reader_command=command, **flags) as job:
        for number, role in zip(range(20), roles, strict=False):
            # The source does not end before all are killed, however slowly workers train.
            (tmp_path / "most").write_text(str(2_000 * number + 15_000))
            job.until_trained(2_000 * (number + 1))
            if number in moves:
                job.move_to(moves[number])
            job.strike(role)
        (tmp_path / "most").write_text(str(num_records))
        summary = job.finish()
    assert job.events("ps moved"), "the model has not moved"
    job.check(summary)


def test_a_reader_of_the_users_is_read_on_from_its_state(tmp_path):
    num_records = 20_000
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "mine.py").write_text(READER)
    data = tmp_path / "data.txt"
    with data.open("w") as file:
        for number in range(num_records):
            ids = (number, number * 7, number * 11)
            print(*(each % counting.NUM_IDS for each in ids), number % 3, file=file)
    flags = {"training_data": data, "model_zoo": tmp_path / "zoo", "model_def": "mine.forward"}
    flags |= {"reader_state": "true", "data_reader_params": "limit=3", "num_ps_pods": 1}
    flags["PYTHONPATH"] = counting.ROOT / "model_zoo"
    flags["model_params"] = f"seconds=0.01;hurry={tmp_path / 'hurry'}"
    with CapturedJob(tmp_path, num_records, **flags) as job:
        job.until_trained(2_000)
        job.send("master")
        (tmp_path / "hurry").touch()
        summary = job.finish()
    job.check(summary)


@pytest.mark.long
def test_what_fails_again_and_again_fails_the_job_in_words(tmp_path):
    with CapturedJob(tmp_path, 0, reader_command="echo 1 2 3 4; exit 3", num_ps_pods=1) as job:
        assert job.process.wait() != 0
    assert "the command ended with exit code 3, after 1 records" in job.printed()


def test_a_source_is_read_to_its_end_first_where_it_has_to_be(tmp_path):
    num_records = 3_000
    command = command_of(tmp_path, num_records)
    flags = {"distribution_strategy": "Local", "num_epochs": 2, "shuffle": "records"}
    flags |= {"num_workers": None, "num_ps_pods": None, "heartbeat_seconds": None}
    with CapturedJob(tmp_path, num_records, reader_command=command, **flags) as job:
        summary = job.finish()
    assert [line["trained_once"] for line in summary["ledger"]] == [num_records] * 2
    counts = counting.counts_of(tmp_path / "export")
    np.testing.assert_array_equal(counts, 2 * occurrences(num_records))
