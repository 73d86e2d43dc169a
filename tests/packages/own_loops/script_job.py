"""`elasticdl run` of a script, on records that are their own numbers."""

import json

from elasticdl._core import RecordWriter
from tests.elastic.running_job import RunningJob, elasticdl


class ScriptJob(RunningJob):
    """The job; all its files go to a folder."""

    def __init__(self, folder, script, num_records, words=(), **flags):
        data = folder / "data.recordio"
        with RecordWriter(str(data)) as writer:
            writer.write_many(str(number).encode() for number in range(num_records))
        wanted = {
            "training_data": data,
            "job_dir": folder / "job",
            "output": folder / "export",
            "summary": folder / "summary.json",
            "heartbeat_seconds": 0.2,
            **flags,
        }
        super().__init__(folder, [*elasticdl("run", script, **wanted), "--", *words])

    def digests(self):
        """Return the hashes of the parameters that workers ended with."""
        return [file.read_text() for file in (self.folder / "finals").glob("[0-9]*")]

    def world_sizes(self):
        """Return the sizes of the worlds that workers have been in."""
        files = (self.folder / "finals").glob("places-*")
        return {size for file in files for _, size in json.loads(file.read_text())}

    def hurry(self):
        """Let the job go to its end as fast as it can."""
        (self.folder / "finals" / "hurry").touch()


def check_ledger(summary, num_records):
    """Check that each record was trained once."""
    (row,) = summary["ledger"]
    assert (row["trained_once"], row["repeated"], row["lost"]) == (num_records, 0, 0)


def check_fails(folder, head, body, message, max_relaunches):
    """Check that a script fails the job, and says why.

    Args:
        head: Lines of the script before its loop.
        body: A line of the loop.
    """
    (folder / "loop.py").write_text(f"{head}for records in controller.minibatches():\n    {body}\n")
    with ScriptJob(
        folder,
        folder / "loop.py",
        64,
        minibatch_size=8,
        max_relaunches=max_relaunches,
        max_task_retries=0,
    ) as job:
        assert job.process.wait() == 1
        assert message in job.printed()
