"""`elasticdl run` of a script, on records that are their own numbers."""

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

    def hurry(self):
        """Let the job go to its end as fast as it can."""
        (self.folder / "finals" / "hurry").touch()


def check_ledger(summary, num_records):
    """Check that each record was trained once."""
    (row,) = summary["ledger"]
    assert (row["trained_once"], row["repeated"], row["lost"]) == (num_records, 0, 0)
