"""`elasticdl run --shards_only`: a minibatch comes once, or once more from a lost worker."""

import collections
import signal

import pytest

from elasticdl._core import RecordWriter
from tests.elastic.running_job import RunningJob, elasticdl

pytestmark = pytest.mark.timeout(300)

MINIBATCH = 10

# It imports neither PyTorch nor Keras. A line is written when its minibatch is computed.
SCRIPT = """
import sys, time
from pathlib import Path
import elasticdl.controller

controller = elasticdl.controller.init()
folder = Path(sys.argv[1])
has_loss = "--loss" in sys.argv
with (folder / f"seen-{controller.worker_id}").open("w", buffering=1) as seen:
    for records in controller.minibatches():
        if not (folder / "hurry").exists():
            time.sleep(0.1)  # the tempo of the job: it lasts longer than a worker's start
        seen.write(" ".join(record.decode() for record in records) + "\\n")
        if has_loss:
            controller.done(loss=0.25)
(folder / f"end-{controller.worker_id}").touch()
"""


class ShardsJob(RunningJob):
    """A job whose records are their own numbers."""

    def __init__(self, folder, script, num_records, *words_of_script, **flags):
        with RecordWriter(str(folder / "data.recordio")) as writer:
            writer.write_many(str(number).encode() for number in range(num_records))
        (folder / "loop.py").write_text(script)
        wanted = {
            "training_data": folder / "data.recordio",
            "job_dir": folder / "job",
            "summary": folder / "summary.json",
            "heartbeat_seconds": 0.2,
            "minibatch_size": MINIBATCH,
            "num_minibatches_per_task": 5,
            **flags,
        }
        words = elasticdl("run", folder / "loop.py", "--shards_only", **wanted)
        super().__init__(folder, [*words, "--", str(folder), *words_of_script])

    def num_begun(self):
        """Return how many workers have begun their script."""
        return len(list(self.folder.glob("seen-*")))

    def all_compute(self):
        """Return whether each of them has computed something, and so ends a task of its own."""
        return all(file.stat().st_size for file in self.folder.glob("seen-*"))

    def seen(self):
        """Return how often scripts have computed each record."""
        words = [file.read_text().split() for file in self.folder.glob("seen-*")]
        return collections.Counter(int(word) for part in words for word in part)


def ledger(summary):
    (row,) = summary["ledger"]
    return row["trained_once"], row["repeated"], row["lost"]


def test_undisturbed_workers_see_each_record_once_and_tell_their_losses(tmp_path):
    with ShardsJob(tmp_path, SCRIPT, 3_995, "--loss", num_workers=2) as job:
        job.until(lambda _: job.num_begun() == 2 and job.all_compute())
        (tmp_path / "hurry").touch()
        summary = job.finish()
        seen = job.seen()
    assert ledger(summary) == (3_995, 0, 0)
    assert seen == dict.fromkeys(range(3_995), 1)
    assert len(list(tmp_path.glob("end-*"))) == 2
    assert summary["loss"] == 0.25


def test_what_lost_workers_had_in_hand_comes_to_others(tmp_path):
    with ShardsJob(tmp_path, SCRIPT, 9_000, num_workers=3) as job:
        job.until_trained(300, also=lambda: job.num_begun() == 3)
        job.send("worker", 1)
        job.until_trained(900)
        job.send("worker", 1, signal.SIGTERM)
        job.until(lambda _: job.num_begun() == 5)  # successors too
        (tmp_path / "hurry").touch()
        summary = job.finish()
        seen = job.seen()
    assert ledger(summary) == (9_000, 0, 0)
    assert sorted(seen) == list(range(9_000))
    # The one that was killed had a minibatch in hand, and perhaps one whose count was on its way.
    assert sum(count - 1 for count in seen.values()) <= 2 * MINIBATCH


@pytest.mark.long
def test_a_lost_replica_comes_back_with_what_was_counted_before_its_last_checkpoint(tmp_path):
    flags = {"recovery_seconds": 0.3, "num_workers": 2}
    with ShardsJob(tmp_path, SCRIPT, 3_000, **flags) as job:
        job.until_trained(500, also=job.has_checkpoint)
        job.send("ps")
        (tmp_path / "hurry").touch()
        summary = job.finish()
        seen = job.seen()
    assert ledger(summary) == (3_000, 0, 0)
    assert sorted(seen) == list(range(3_000))
    assert sum(count - 1 for count in seen.values()) < 3_000


WRONG_SCRIPT = """
import elasticdl.controller

controller = elasticdl.controller.init()
told = []
for records in controller.minibatches():
    for wrong in (
        lambda: controller.wrap(None, None),
        lambda: controller.rank,
        lambda: controller.done("much"),
    ):
        try:
            wrong()
        except Exception as error:
            told.append(str(error))
    raise ValueError(" | ".join(told))
"""


def test_a_script_that_takes_it_for_another_job_is_told(tmp_path):
    with ShardsJob(tmp_path, WRONG_SCRIPT, 20, max_relaunches=0, max_task_retries=0) as job:
        assert job.process.wait() == 1
        printed = job.printed()
    assert "loop.py: ValueError: " in printed
    assert "expected a script that makes its updates itself" in printed
    assert "know nothing of each other" in printed
    assert "done(loss): expected one number, found str" in printed


LOADER = """
import sys
from pathlib import Path
import torch
import elasticdl.controller

class Numbers(torch.utils.data.Dataset):
    def __getitem__(self, record):
        assert torch.utils.data.get_worker_info() is not None
        return int(record)

controller = elasticdl.controller.init()
loader = torch.utils.data.DataLoader(
    Numbers(), batch_sampler=controller.batches(), num_workers=2, persistent_workers=True
)
with (Path(sys.argv[1]) / f"seen-{controller.worker_id}").open("w") as seen:
    for numbers in controller.minibatches(loader):
        seen.write(" ".join(map(str, numbers.tolist())) + "\\n")
"""


@pytest.mark.torch
def test_a_data_loader_makes_examples_of_the_records(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch has it")
    with ShardsJob(tmp_path, LOADER, 205, num_workers=2) as job:
        summary = job.finish()
        seen = job.seen()
    assert ledger(summary) == (205, 0, 0)
    assert seen == dict.fromkeys(range(205), 1)
