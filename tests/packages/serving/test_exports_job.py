"""An export that goes on while processes are killed is, at the end, what the job has trained."""

import contextlib
import json
import shutil
import subprocess

import numpy as np
import pyarrow.dataset
import pytest

from elasticdl.packages.serving.publishing import versions
from elasticdl.packages.serving.versions import Versions
from scripts.chaos import job as counting
from tests.elastic.counting_job import CountingJob
from tests.elastic.running_job import elasticdl, run

pytestmark = pytest.mark.timeout(400)


class Follower:
    """Loads each version of an export as it comes, and afresh at the end."""

    def __init__(self, exports):
        self._exports, self._scratch = exports, exports.parent
        self._versions, self._loaded = Versions(exports, self._scratch), None
        self.seen = []

    def look(self):
        if not (self._exports / "CURRENT").exists():
            return
        if (found := self._versions.next(self._loaded)) is not None:
            self._loaded = found
            self.seen.append(found.pointer.number)

    def both(self):
        """What was followed, and what is read afresh."""
        self.look()
        return self._loaded, Versions(self._exports, self._scratch).next(None)


def rows_of(version, number, ids):
    table = version.manifest.tables[number]
    out = np.empty((len(ids), table["dim"]), np.float32)
    version.tables.look_up(number, ids, float(table["unseen"]), out)
    return out


def check_is_full_export(follower, folder):
    """What was followed and what is read afresh are the tables and the dense parameters."""
    followed, afresh = follower.both()
    (table,) = json.loads((folder / "tables" / "manifest.json").read_text())["tables"]
    rows = pyarrow.dataset.dataset(folder / "tables" / table["name"]).to_table()
    order = np.argsort(rows["key"].to_numpy())
    ids, weights = rows["key"].to_numpy()[order], np.stack(rows["weights"].to_numpy())[order]
    for version in (followed, afresh):
        assert np.array_equal(np.sort(version.tables.ids(0)), ids)
        assert rows_of(version, 0, ids).tobytes() == weights.tobytes()
        model = counting.read_model(folder / "export")
        dense = np.concatenate([value.ravel() for value in model.dense.values()])
        assert version.dense.tobytes() == dense.tobytes()


def tempo(folder, seconds):
    """Return the flags of a job whose minibatches take so long until there is a file `hurry`."""
    params = f"seconds={seconds};hurry={folder / 'hurry'}"
    return {"model_def": "counting.staged.forward", "model_params": params}


@pytest.mark.long
def test_base_and_deltas_are_the_full_export_whoever_is_killed_or_moves(tmp_path):
    job = CountingJob(
        tmp_path,
        seed=8,
        export_dir=tmp_path / "exports",
        export_every="0.3s",
        export_full_every=8,
        keep_exports=3,
        export_tables=tmp_path / "tables",
        recovery_seconds=1,
        **tempo(tmp_path, 0.1),
        minibatch_size=64,
        num_minibatches_per_task=6,
    )
    follower = Follower(tmp_path / "exports")
    due = [(0.1, "move"), (0.3, "ps"), (0.4, "master"), (0.5, "ps"), (0.7, "worker")]
    with job:
        for status in job.statuses():
            follower.look()
            if due and status.records_done > due[0][0] * status.records_total and follower.seen:
                if (who := due.pop(0)[1]) == "move":
                    run(elasticdl("scale", job.job_dir, ps=3))
                    job.until_event("ps moved")
                else:
                    job.send(who)
            if not due:
                (tmp_path / "hurry").touch()
        summary = job.finish()

    assert due == [], job.log()
    job.check_counts(summary)
    check_is_full_export(follower, tmp_path)
    written = job.events("version exported")
    assert len(follower.seen) >= 3
    assert follower.seen == sorted(follower.seen)
    # A replica that came back wrote all it had, the other one what had changed.
    mixed = [not event["is_base"] for event in written]
    assert any(mixed), written
    assert [event["replicas"] for event in job.events("ps moved")] == [3]
    assert len(versions(tmp_path / "exports")) <= 3 + 7


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, which has room for little."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.long
def test_an_export_whose_disk_is_full_goes_on_when_there_is_room(small_disk, tmp_path):
    full, exports = small_disk / "filling", small_disk / "exports"
    flags = {"export_dir": exports, "export_every": "0.3s", "export_tables": tmp_path / "tables"}
    flags |= tempo(tmp_path, 0.05)
    job, follower = CountingJob(tmp_path, seed=8, keep_exports=1, **flags), Follower(exports)
    with job:
        job.until_event("version exported")
        with contextlib.suppress(OSError), full.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        job.until_event("export failed")
        full.unlink()
        failed_at = job.events("export failed")[-1]["time"]
        job.until_event("version exported", also=lambda event: event["time"] > failed_at)
        (tmp_path / "hurry").touch()
        summary = job.finish()

    job.check_counts(summary)
    check_is_full_export(follower, tmp_path)
    assert all("No space left" in event["text"] for event in job.events("export failed"))
    assert not list(exports.glob("*.partial"))
