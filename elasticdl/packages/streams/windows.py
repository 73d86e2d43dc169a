"""Scores of the messages of a stream before they were trained, by windows of event time.

The number of messages of a window is a fact. The sums of metrics are not in the journal, like the
sums of `training_metrics`. A restarted master begins them anew, and `num_measured` says so. The
result of a window is a fact again, once the window is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from elasticdl.job import MeasuredWindow, MetricStates
from elasticdl.job.status import WindowStatus
from elasticdl.master.features.training_metrics import ScoredWindows
from elasticdl.master.journal import Journal
from elasticdl.master.metric_sums import add
from elasticdl.state.base import Snapshot

_KEPT = 60
"""Windows that are over and still shown."""
_MOST = 512
"""The largest number of windows that are kept; beyond it the oldest window is over."""
_TOGETHER = 32
"""The largest number of windows whose metrics are asked for at once."""
_TOGETHER_BYTES = 1 << 20
"""The largest size of their sums together, if they are several."""


@dataclass(slots=True)
class _Window:
    """A window of event time. The first four are facts, as `num_measured` is of one that is told.

    told_measured: of how many records `metrics` are.
    """

    num_messages: int = 0
    is_told: bool = False
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    told_measured: int = 0
    num_trained: int = 0
    loss_sum: float = 0.0
    num_measured: int = 0
    states: MetricStates = field(default_factory=dict)

    @property
    def is_behind(self) -> bool:
        """Whether there are sums of which no metrics were made."""
        return bool(self.states) and self.told_measured != self.num_measured


class Windows(ScoredWindows):
    """The windows that are not over, and the last ones that are."""

    def __init__(self, journal: Journal, seconds: float) -> None:
        """Begin with none.

        Args:
            journal: The journal of the job.
            seconds: The length of a window.
        """
        super().__init__()
        self._journal = journal
        self._seconds = seconds
        self._windows: dict[int, _Window] = {}
        self._first = 0  # messages of forgotten windows before it are not kept
        self._asked: dict[int, int] = {}  # window -> its measured records when asked
        journal.handle("window", self._apply_told)

    # --- events ----------------------------------------------------------------------------------

    def scored(self, found: Iterable[MeasuredWindow]) -> None:
        """Add what the first lease of a task has scored."""
        for each in found:
            window = self._window(each.number) if each.num_trained else None
            if window is None or window.is_told:
                continue  # its result has been told
            window.num_trained += each.num_trained
            window.loss_sum += each.loss_sum
            window.loss = window.loss_sum / window.num_trained
            if each.metric_states:
                window.num_measured += each.num_measured
                window.states = add(window.states, each.metric_states)

    def ask(self) -> dict[str, MetricStates]:
        """Return sums of which metrics are to be made, by the number of their window."""
        behind = [number for number in sorted(self._windows) if self._windows[number].is_behind]
        chosen: list[int] = []
        num_bytes = 0
        for number in behind[:_TOGETHER]:
            arrays = itertools.chain(*self._windows[number].states.values())
            num_bytes += sum(array.nbytes for array in arrays)
            if chosen and num_bytes > _TOGETHER_BYTES:
                break
            chosen.append(number)
        self._asked = {number: self._windows[number].num_measured for number in chosen}
        return {str(number): self._windows[number].states for number in chosen}

    def answered(self, metrics: Mapping[str, Mapping[str, float]]) -> None:
        """Take in the metrics of the windows that were asked for."""
        for number, num_measured in self._asked.items():
            window = self._windows.get(number)
            if window is not None and not window.is_told:
                window.metrics = dict(metrics.get(str(number), {}))
                window.told_measured = num_measured
        self._asked = {}

    def tell(self, watermark: float, is_end: bool) -> list[WindowStatus]:
        """Return the windows that are over now, and were not before, as facts.

        Args:
            watermark: In seconds since 1970.
            is_end: No more messages come.
        """
        told = []
        for number in sorted(n for n, window in self._windows.items() if not window.is_told):
            window = self._windows[number]
            is_over = is_end or (number + 1) * self._seconds <= watermark
            # A window waits for its metrics. If there are too many windows, the oldest are told
            # early, so that memory stays bounded.
            is_complete = is_over and (self.is_given_up or not window.is_behind)
            if is_complete or len(self._windows) > _MOST:
                measured = window.told_measured
                self._journal.record("window", number, window.loss, window.metrics, measured)
                told.append(self._status(number, window))
        return told

    # --- questions -------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether there are sums of which no metrics were made."""
        return not self.is_given_up and any(each.is_behind for each in self._windows.values())

    @property
    def is_urgent(self) -> bool:
        """Whether metrics of many windows wait."""
        behind = sum(each.is_behind for each in self._windows.values())
        return not self.is_given_up and behind >= _TOGETHER

    def statuses(self) -> tuple[WindowStatus, ...]:
        """Return the windows that are shown, in their order."""
        shown = sorted(self._windows)[-_KEPT - 1 :]
        return tuple(self._status(number, self._windows[number]) for number in shown)

    def _status(self, number: int, window: _Window) -> WindowStatus:
        return WindowStatus(
            start=number * self._seconds,
            seconds=self._seconds,
            num_messages=window.num_messages,
            num_measured=window.told_measured,
            loss=window.loss,
            metrics=window.metrics,
            is_over=window.is_told,
        )

    def _window(self, number: int) -> _Window | None:
        """Return a window; None if the window was forgotten."""
        if number < self._first and number not in self._windows:
            return None
        return self._windows.setdefault(number, _Window())

    # --- facts -----------------------------------------------------------------------------------

    def count(self, counts: Iterable[tuple[int, int]]) -> None:
        """Count messages of windows; a part of a fact."""
        for number, num_messages in counts:
            window = self._window(number)
            if window is not None:
                window.num_messages += num_messages

    def _apply_told(
        self, number: int, loss: float | None, metrics: dict[str, float], num_measured: int
    ) -> None:
        window = self._windows[number]
        window.is_told, window.loss, window.metrics = True, loss, dict(metrics)
        window.told_measured, window.states = num_measured, {}
        told = [each for each in sorted(self._windows) if self._windows[each].is_told]
        for each in told[:-_KEPT]:
            del self._windows[each]
            self._first = max(self._first, each + 1)

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        return {
            "first": self._first,
            "windows": [
                [n, w.num_messages, w.is_told, w.loss, dict(w.metrics), w.told_measured]
                if w.is_told
                # Only counts are facts of a window that is not over; its sums begin anew.
                else [n, w.num_messages, False, None, {}, 0]
                for n, w in self._windows.items()
            ],
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        self._first = snapshot["first"]
        self._windows = {n: _Window(*facts) for n, *facts in snapshot["windows"]}
