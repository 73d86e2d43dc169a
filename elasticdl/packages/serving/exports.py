"""Decides when the next version of an export is due; a feature of the job's master."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import ClassVar

from elasticdl.job import ServedProgram
from elasticdl.master.features.base import JobFeature, JobParts
from elasticdl.master.features.outputs import WrittenPrograms
from elasticdl.master.parameters.works import Export, ParameterWork
from elasticdl.master.patience import Patience, told
from elasticdl.packages.serving import events
from elasticdl.packages.serving.export_every import Every
from elasticdl.packages.serving.publishing import Published, Publisher
from elasticdl.packages.serving.settings import ExportsSection
from elasticdl.settings.reader_params import without_password
from elasticdl.state.base import Snapshot

_LONGEST_PAUSE_SECONDS = 30.0


class VersionWriter:
    """Writes the versions of a job, in a thread."""

    def __init__(self, settings: ExportsSection) -> None:
        """Write nothing yet."""
        self._settings = settings
        self._publisher: Publisher | None = None

    @property
    def place(self) -> str:
        """The folder or URL of the versions."""
        return str(self._settings.export_dir)

    def write(
        self, version: int, job_id: str, program: ServedProgram | None, export: Export
    ) -> Published:
        """Write the next version.

        Raises:
            ElasticdlError: It cannot be written.
        """
        if self._publisher is None:
            settings = self._settings
            assert settings.export_dir is not None, "only a job with --export_dir exports versions"
            full_every, keep = settings.export_full_every, settings.keep_exports
            self._publisher = Publisher(settings.export_dir, job_id, full_every, keep)
        return self._publisher.publish(version, program, export)


@dataclass(frozen=True, slots=True)
class NextVersion:
    """Write the next version of an export; it is a `WorkStep`."""

    program: ServedProgram | None
    writer: VersionWriter = field(compare=False)

    @property
    def place(self) -> str:
        """The folder or URL of the versions."""
        return self.writer.place

    def run(self, version: int, job_id: str, export: Export) -> Published:
        """Write it; see `WorkStep`."""
        return self.writer.write(version, job_id, self.program, export)


class ExportSchedule(ParameterWork):
    """Keeps when versions are due while training, and whether the last version is there.

    A master that comes back writes a version at once, since the times are not journalled. Nothing
    else is lost: the list of versions is read from the folder.
    """

    name: ClassVar[str] = "export"
    key: ClassVar[str] = "exports"

    def __init__(self, job: JobParts) -> None:
        """Start without versions."""
        self._job, journal = job, job.journal
        settings = job.config.of(ExportsSection)
        self._writer = VersionWriter(settings)
        self._every = Every.of(settings.export_every)
        self._not_before = 0.0  # time
        self._next_version = self._every.updates
        self._newest = 0  # model version in the newest export
        self._patience = Patience(journal, "export")
        self._patience_at_end = Patience(journal, "last export")
        self._key = ""  # identity of the model that the workers train
        self.program: ServedProgram | None = None
        """The program of the workers' model; None: no worker has written it so far."""
        self._is_compared = False  # whether a worker has written it since this master began
        journal.handle("export over", self._apply_over)
        journal.handle("export program", self._apply_program)

    # --- events ----------------------------------------------------------------------------------

    def needs_program(self, key: str, is_first: bool) -> bool:
        """Say whether a worker that begins is to write its model's program.

        A program of a worker with another model is not exported any more. The key does not have
        the files that a model function reads, such as a vocabulary. So after a start of the master
        the program is written again, and compared.

        Args:
            key: The identity of the worker's model.
            is_first: Whether this worker writes, among the workers that begin together.
        """
        if self.program is None:
            return is_first
        if self._key == key:
            return is_first and not self._is_compared
        self._job.journal.record("export program", key, None)
        return True

    def has_program(self, key: str, program: ServedProgram) -> None:
        """Note that a worker has written its model's program.

        The first one of a model counts, and the first one since the master began.
        """
        is_newer = not self._is_compared and self.program != program
        if is_newer or self.program is None or self._key != key:
            self._job.journal.record("export program", key, [program.name, program.sha256])
        self._is_compared = True

    def begin(self, version: int, now: float) -> NextVersion:
        """Return the next version, which is written now."""
        self._not_before = now + self._every.seconds
        if every := self._every.updates:
            self._next_version = (version // every + 1) * every
        return NextVersion(self.program, self._writer)

    def done(self, version: int, result: object, is_last: bool) -> None:
        """Note that a version is there."""
        assert isinstance(result, Published), "only a version is asked for"
        self._newest = version
        self._patience.succeeded()
        if is_last:
            self._job.journal.record("export over")
        self._job.note(
            events.VersionExported(version, *astuple(result)), _version_text(version, result)
        )

    def failed(self, version: int, message: str, now: float, is_last: bool, is_again: bool) -> None:
        """Go on without the version: the next one has all that this one would have had."""
        pause = self._pause(now, is_last)
        text = without_password(f"export: {message}")  # of the URL; the page shows problems
        if pause is not None:
            text = told(text, pause, "the version")
        self._job.note(events.ExportFailed(version), text, is_warning=True)
        if is_last and pause is None and not is_again:
            self._job.journal.record("export over")
            self._job.history.add_problem(text)

    def _pause(self, now: float, is_last: bool) -> float | None:
        """Return the seconds to the next try.

        None: the last one is given up; while training it is tried at long intervals.
        """
        patience = self._patience_at_end if is_last else self._patience
        pause = patience.failed(now)
        self._not_before = now + (_LONGEST_PAUSE_SECONDS if pause is None else pause)
        # The next try waits for the pause only, not for the next multiple of updates.
        self._next_version = 0
        return pause

    # --- questions -------------------------------------------------------------------------------

    def is_due(self, version: int, now: float) -> bool:
        """Whether a version should be written while training, at this model version."""
        is_time = now >= self._not_before and version >= self._next_version
        return self.program is not None and is_time and version > self._newest

    def is_last_due(self, now: float) -> bool:
        """Whether the version of the end should be written now."""
        return not self.is_over and self._patience_at_end.may_try(now)

    # --- facts -----------------------------------------------------------------------------------

    def _apply_program(self, key: str, program: list[str] | None) -> None:
        self._key = key
        self.program = None if program is None else ServedProgram(*program)

    def _apply_over(self) -> None:
        self.is_over = True
        self._patience_at_end.reset()

    # --- snapshot --------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return the state as JSON has it."""
        patience = [self._patience.snapshot(), self._patience_at_end.snapshot()]
        program = None if self.program is None else [self.program.name, self.program.sha256]
        return {"is_over": self.is_over, "patience": patience, "program": [self._key, program]}

    def restore(self, snapshot: Snapshot | None) -> None:
        """Take over the state of a snapshot; None: of one that has none, of an earlier version."""
        if snapshot is not None:
            self.is_over = snapshot["is_over"]
            self._apply_program(*snapshot.get("program", ("", None)))
            for patience, state in zip(
                (self._patience, self._patience_at_end), snapshot["patience"], strict=True
            ):
                patience.restore(state)


class ContinuousExport(WrittenPrograms):
    """Has versions of the export written, and the program that they need."""

    def __init__(self, job: JobParts) -> None:
        self._job = job
        self._schedule = ExportSchedule(job)
        job.parameters.add_work(self._schedule)

    def is_needed(self, worker_id: int, key: str) -> bool:
        """Return whether a worker is to write its model's program."""
        return self._schedule.needs_program(key, self._job.config.does_for_all(worker_id))

    def written(self, key: str, program: ServedProgram, now: float) -> None:
        """A worker says that its model's program is written."""
        self._schedule.has_program(key, program)
        self._job.advance(now)


def features_of(job: JobParts) -> list[JobFeature]:
    """Return the feature of a job that exports while it trains."""
    is_wanted = job.config.of(ExportsSection).export_dir is not None
    return [ContinuousExport(job)] if is_wanted else []


def _version_text(version: int, done: Published) -> str:
    what = "all rows" if done.is_base else "changes"
    gone = f", {done.num_gone:,} ids that have gone" if done.num_gone else ""
    held = "" if done.is_current else "; another version is held (elasticdl exports)"
    return (
        f"version {done.number} of the export is written ({what}): {done.num_rows:,} rows"
        f"{gone}, {done.num_bytes:,} bytes, at model version {version:,}{held}"
    )
