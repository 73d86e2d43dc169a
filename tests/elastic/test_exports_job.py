"""An export that goes on while processes are killed is, at the end, what the job has trained."""

import json

import numpy as np
import pyarrow.dataset
import pytest

from elasticdl.checkpoints.publishing import versions
from elasticdl.serving.versions import Versions
from scripts.chaos import job as counting
from tests.elastic.counting_job import CountingJob

pytestmark = pytest.mark.timeout(300)


class Follower:
    """Loads each version of an export as it comes, and afresh at the end."""

    def __init__(self, folder):
        self._folder = folder
        self._versions, self._loaded = Versions(folder / "exports", folder), None
        self.seen = []

    def look(self):
        if not (self._folder / "exports" / "CURRENT").exists():
            return
        if (found := self._versions.next(self._loaded)) is not None:
            self._loaded = found
            self.seen.append(found.pointer.number)

    def both(self):
        """What was followed, and what is read afresh."""
        self.look()
        return self._loaded, Versions(self._folder / "exports", self._folder).next(None)


def rows_of(version, number, ids):
    table = version.manifest.tables[number]
    out = np.empty((len(ids), table["dim"]), np.float32)
    version.tables.look_up(number, ids, float(table["unseen"]), out)
    return out


def test_base_and_deltas_are_the_full_export_whoever_is_killed(tmp_path):
    job = CountingJob(
        tmp_path,
        seed=8,
        export_dir=tmp_path / "exports",
        export_every="0.3s",
        export_full_every=8,
        keep_exports=3,
        export_tables=tmp_path / "tables",
        recovery_seconds=1,
    )
    follower = Follower(tmp_path)
    due = [(0.2, "ps"), (0.4, "master"), (0.5, "ps"), (0.7, "worker")]
    with job:
        for status in job.statuses():
            follower.look()
            if due and status.records_done > due[0][0] * status.records_total and follower.seen:
                job.send(due.pop(0)[1])
        summary = job.finish()

    assert due == [], job.log()
    job.check_counts(summary)
    followed, afresh = follower.both()
    (table,) = json.loads((tmp_path / "tables" / "manifest.json").read_text())["tables"]
    rows = pyarrow.dataset.dataset(tmp_path / "tables" / table["name"]).to_table()
    order = np.argsort(rows["key"].to_numpy())
    ids, weights = rows["key"].to_numpy()[order], np.stack(rows["weights"].to_numpy())[order]
    for version in (followed, afresh):
        assert np.array_equal(np.sort(version.tables.ids(0)), ids)
        assert rows_of(version, 0, ids).tobytes() == weights.tobytes()
        model = counting.read_model(tmp_path / "export")
        dense = np.concatenate([value.ravel() for value in model.dense.values()])
        assert version.dense.tobytes() == dense.tobytes()
    written = job.events("version exported")
    assert len(follower.seen) >= 3
    assert follower.seen == sorted(follower.seen)
    # A replica that came back wrote all it had, the other one what had changed.
    mixed = [not event["is_base"] for event in written]
    assert any(mixed), written
    assert len(versions(tmp_path / "exports")) <= 3 + 7
