"""The contract of works: what packages do with all parameters, beside checkpoints and proofs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol

from elasticdl.state.base import Snapshot

Export = Callable[[str], list[str]]
"""Has all parameters written as `edl_export::ExportRequest` says, as JSON."""


class WorkStep(Protocol):
    """One turn of a work, which runs beside the event loop."""

    @property
    def place(self) -> str:
        """The folder or URL that it writes to."""
        ...

    def run(self, version: int, job_id: str, export: Export) -> object:
        """Do it; return what the work wants to know of it.

        Args:
            version: The number of updates of the model.
            job_id: The identity of the job.
            export: Writes the parameters.

        Raises:
            ElasticdlError: It could not be done.
        """
        ...


class ParameterWork(ABC):
    """A work that is done with all parameters now and then, and once more at the end of the job.

    Works, checkpoints and proofs are done one at a time. A feature adds its work by
    `JobParameters.add_work` when it is made.

    Attributes:
        name: The name of its requests in the journal, which never changes.
        key: The name of its part of the snapshot.
        is_over: Whether the last one is done, or was given up.
    """

    name: ClassVar[str]
    key: ClassVar[str]
    is_over: bool = False

    @property
    def last_name(self) -> str:
        """The name of the request at the end of the job."""
        return f"last {self.name}"

    @abstractmethod
    def is_due(self, version: int, now: float) -> bool:
        """Return whether it should be done while training, at this model version."""

    @abstractmethod
    def is_last_due(self, now: float) -> bool:
        """Return whether the last one should be done now."""

    @abstractmethod
    def begin(self, version: int, now: float) -> WorkStep:
        """Return what is to be done now."""

    @abstractmethod
    def done(self, version: int, result: object, is_last: bool) -> None:
        """Take in the result of a step."""

    @abstractmethod
    def failed(self, version: int, message: str, now: float, is_last: bool, is_again: bool) -> None:
        """Take in that a step failed.

        Args:
            version: The model version of the step.
            message: Says why.
            now: The time.
            is_last: Whether it was the last one of a job that has not ended yet.
            is_again: Whether it is tried again soon in any case.
        """

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""

    @abstractmethod
    def restore(self, snapshot: Snapshot | None) -> None:
        """Take over the state of a snapshot; None: of one that has none."""
