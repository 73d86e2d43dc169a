"""The job of `scripts/chaos`, undisturbed until a test does something to it."""

import numpy as np

from scripts.chaos import job as counting
from tests.elastic.running_job import RunningJob


class CountingJob(RunningJob):
    """`elasticdl train` that counts how often each id was trained; all files go to a folder."""

    def __init__(self, folder, seed, num_epochs=counting.NUM_EPOCHS, **flags):
        self._num_epochs = num_epochs
        files = counting.make_ids(seed)
        counting.write_data(folder / "data", files)
        ids = np.concatenate([file.ravel() for file in files])
        self._occurrences = np.bincount(ids, minlength=counting.NUM_IDS)
        places = (folder / "data", folder / "export", folder / "job", folder / "summary.json")
        super().__init__(folder, counting.train_command(*places, num_epochs=num_epochs, **flags))

    def check_ledger(self, summary):
        """Each record counts once in each epoch, by the ledger."""
        ledger = [(e["trained_once"], e["repeated"], e["lost"]) for e in summary["ledger"]]
        assert ledger == [(counting.NUM_RECORDS, 0, 0)] * self._num_epochs

    def check_counts(self, summary):
        """And by the model itself."""
        self.check_ledger(summary)
        counts = counting.counts_of(self.folder / "export")
        np.testing.assert_array_equal(counts, self._num_epochs * self._occurrences)

    def check_computed_once(self):
        """What the workers say that they trained is what there was to train."""
        trained = {}
        for event in self.events("progress"):
            trained[event["index"]] = max(trained.get(event["index"], 0), event["num_records"])
        assert sum(trained.values()) <= self._num_epochs * counting.NUM_RECORDS
