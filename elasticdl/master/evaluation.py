"""Evaluation: when, on what, and what came out.

An evaluation is one pass over the validation data by whichever workers are there. They send sums
(`MetricStates`), which are added here in float64; the METRICS task then has one worker turn the
sums into numbers, since only workers know the user's metrics.
"""

from __future__ import annotations

import base64
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from elasticdl.errors import ModelError
from elasticdl.job import MetricStates
from elasticdl.master.journal import Journal
from elasticdl.state.base import Snapshot


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The metrics of one evaluation, of the model as it was from `version` on.

    num_epochs: that were complete. training: loss and metrics of the training data by then, as far
    as they are known.
    """

    evaluation_id: int
    version: int
    metrics: dict[str, float]
    num_records: int = 0
    num_epochs: int = 0
    training: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Running:
    evaluation_id: int
    version: int
    remaining: int  # validation tasks
    states: MetricStates = field(default_factory=dict)
    num_records: int = 0
    num_epochs: int = 0  # complete epochs at its start


class Evaluations:
    """One evaluation at a time. A validation task counts when its lease ends as done: once."""

    def __init__(self, journal: Journal, num_tasks: int, every_versions: int | None) -> None:
        """Start without results.

        Args:
            journal: The journal that takes the facts.
            num_tasks: Validation tasks of one evaluation; 0: there is nothing to evaluate on.
            every_versions: `--evaluation_steps`; 0: never by itself; None: after each epoch.
        """
        self._journal = journal
        self._num_tasks = num_tasks
        self._every_versions = every_versions or 0
        self._is_by_epoch = every_versions is None
        self._running: _Running | None = None
        self._next_id = 0
        self._next_version = self._every_versions
        self.num_epochs = 0
        """Complete epochs that the newest results are of."""
        self.results: list[EvaluationResult] = []
        self.was_abandoned = False
        self.has_told_overfitting = False
        journal.handle("evaluation", self._apply_started)
        journal.handle("evaluated", self._apply_evaluated)
        journal.handle("metrics", self._apply_metrics)
        journal.handle("evaluation abandoned", self._apply_abandoned)
        journal.handle("overfitting told", self._apply_told_overfitting)

    # --- events ----------------------------------------------------------------------------------

    def is_due(self, version: int, num_epochs: int) -> bool:
        """Whether an evaluation while training should start at this model version.

        Args:
            version: The version of the model.
            num_epochs: How many are complete.
        """
        if not self.can_start:
            return False
        if self._is_by_epoch:
            return num_epochs > self.num_epochs
        return self._every_versions > 0 and version >= self._next_version

    @property
    def follows_epochs(self) -> bool:
        """Whether there is one after each epoch, before the next one begins."""
        return self._is_by_epoch and self._num_tasks > 0 and not self.was_abandoned

    @property
    def can_start(self) -> bool:
        """Whether there is data, no evaluation under way, and none that failed."""
        return self._num_tasks > 0 and self._running is None and not self.was_abandoned

    def start(self, version: int, num_epochs: int = 0) -> int:
        """Start an evaluation, with so many epochs complete; return its id."""
        evaluation_id = self._next_id
        self._journal.record("evaluation", evaluation_id, version, num_epochs)
        return evaluation_id

    def check(self, evaluation_id: int, states: MetricStates) -> None:
        """Check that the sums of a validation task can be added to the sums of other tasks.

        A task has no sums if `feed` left out all of its records.

        Raises:
            ModelError: The sums are of other metrics or shapes.
        """
        if states and self.running_id == evaluation_id and self._running is not None:
            _check_alike(self._running.states, states)

    def evaluated(self, evaluation_id: int, states: MetricStates, num_records: int = 0) -> bool:
        """Add the sums of one validation task; return whether it was the last task."""
        # A task of an evaluation that was given up may still be under lease, and reports late.
        if self._running is None or self._running.evaluation_id != evaluation_id:
            return False
        self._journal.record("evaluated", encode_states(states), int(num_records))
        return self._running.remaining == 0

    def finish(
        self, evaluation_id: int, metrics: dict[str, float], training: dict[str, float]
    ) -> None:
        """Keep the results of an evaluation, and what was measured of training by then."""
        if self.running_id == evaluation_id:
            values, of_training = (
                {name: float(value) for name, value in found.items()}
                for found in (metrics, training)
            )
            self._journal.record("metrics", evaluation_id, values, of_training)

    def tell_overfitting(self) -> None:
        """Note that the user was told of overfitting, so that this is said only once."""
        self._journal.record("overfitting told")

    def abandon(self) -> None:
        """Give up the evaluation under way, and start no other one."""
        self._journal.record("evaluation abandoned")

    def reopened(self) -> None:
        """Forget the evaluation that was under way when the job failed; a part of a fact."""
        self._running, self.was_abandoned = None, False

    # --- questions -------------------------------------------------------------------------------

    @property
    def running_id(self) -> int | None:
        """Id of the evaluation under way."""
        return None if self._running is None else self._running.evaluation_id

    @property
    def states(self) -> MetricStates:
        """The merged sums of the evaluation under way."""
        return {} if self._running is None else self._running.states

    @property
    def num_records(self) -> int:
        """How many records the last results are of."""
        return self.results[-1].num_records if self.results else 0

    @property
    def metrics(self) -> dict[str, float]:
        """The last results."""
        return dict(self.results[-1].metrics) if self.results else {}

    # --- facts -----------------------------------------------------------------------------------

    def _apply_started(self, evaluation_id: int, version: int, num_epochs: int = 0) -> None:
        self._running = _Running(evaluation_id, version, self._num_tasks, num_epochs=num_epochs)
        self._next_id = evaluation_id + 1
        if self._every_versions:
            self._next_version = (version // self._every_versions + 1) * self._every_versions

    def _apply_evaluated(self, encoded: Encoded, num_records: int) -> None:
        assert self._running is not None
        self._running.num_records += num_records
        self._running.remaining -= 1
        states = decode_states(encoded)
        for name, arrays in states.items():
            sums = self._running.states.get(name)
            self._running.states[name] = (
                arrays if sums is None else [a + b for a, b in zip(sums, arrays, strict=True)]
            )

    def _apply_metrics(
        self,
        evaluation_id: int,
        metrics: dict[str, float],
        training: dict[str, float] | None = None,  # earlier versions had none
    ) -> None:
        assert self._running is not None
        run = self._running
        self.results.append(
            EvaluationResult(
                evaluation_id, run.version, metrics, run.num_records, run.num_epochs, training or {}
            )
        )
        self.num_epochs = run.num_epochs
        self._running = None

    def _apply_told_overfitting(self) -> None:
        self.has_told_overfitting = True

    def _apply_abandoned(self) -> None:
        self._running = None
        self.was_abandoned = True

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        run = self._running
        return {
            "running": None
            if run is None
            else [
                run.evaluation_id,
                run.version,
                run.remaining,
                encode_states(run.states),
                run.num_records,
                run.num_epochs,
            ],
            "num_epochs": self.num_epochs,
            "next_id": self._next_id,
            "next_version": self._next_version,
            "results": [list(astuple(result)) for result in self.results],
            "has_told_overfitting": self.has_told_overfitting,
            "was_abandoned": self.was_abandoned,
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of a snapshot."""
        if snapshot["running"] is not None:
            evaluation_id, version, remaining, states, *numbers = snapshot["running"]
            self._running = _Running(
                evaluation_id, version, remaining, decode_states(states), *numbers
            )
        self.num_epochs = snapshot.get("num_epochs", 0)
        self._next_id = snapshot["next_id"]
        self._next_version = snapshot["next_version"]
        self.results = [EvaluationResult(*result) for result in snapshot["results"]]
        self.was_abandoned = snapshot["was_abandoned"]
        self.has_told_overfitting = snapshot.get("has_told_overfitting", False)


Encoded = dict[str, list[list[Any]]]
"""Metric states as JSON has them: for each array its shape, and its bytes in base 64."""


def encode_states(states: MetricStates) -> Encoded:
    """Return metric states as JSON: for each array its shape, and its bytes in base 64."""
    return {
        name: [
            [list(a.shape), base64.b64encode(np.ascontiguousarray(a, "<f8").tobytes()).decode()]
            for a in arrays
        ]
        for name, arrays in states.items()
    }


def decode_states(encoded: Encoded) -> MetricStates:
    """Return what `encode_states` was given."""
    return {
        name: [
            np.frombuffer(base64.b64decode(data), "<f8").reshape(shape).astype(np.float64)
            for shape, data in arrays
        ]
        for name, arrays in encoded.items()
    }


def _check_alike(sums: MetricStates, states: MetricStates) -> None:
    if not sums:
        return
    expected = {name: [a.shape for a in arrays] for name, arrays in sums.items()}
    found = {name: [a.shape for a in arrays] for name, arrays in states.items()}
    if expected != found:
        raise ModelError(
            f"eval_metrics_fn: expected metric states {expected} as other workers sent, found "
            f"{found}; do all workers run the same model file?"
        )
