"""Processes of a job that say nothing of themselves, for `benchmarks/seeing.py`.

Python imports this at its start where the folder is in PYTHONPATH. No event is written, no time is
labelled, nothing is measured for heartbeats. These themselves stay, with the progress of workers,
for the master needs them.
"""

import sys

if any("elasticdl" in word for word in sys.orig_argv):
    from elasticdl.job import Label, Usage
    from elasticdl.observe import events, labels, usage

    def _write(self, kind, text=""):
        return events.line_of(self._clock(), self._role, self._index, kind, text)

    def _enter(self, label):
        self.label = label

    def _measure(*_given):
        return Usage(0.0, Label.TRAIN, {}, 0.0, 0, 0, 0)

    events.EventLog.write = _write
    if "elasticdl.worker" in sys.orig_argv:  # the others enter few
        labels.LabelClock.enter = _enter
    usage.measure = _measure
