"""The parameters on their way to a joiner while the others go on: both ends, each with a thread.

A `Giver` writes the store of rank 0 as of one instant, beside the updates that go on. A `Stage`
takes the pieces, and keeps the updates that are made meanwhile. It makes those that the store
lacks. All ranks make the same updates from the same mean gradients, so it has the same bits then.
"""

from __future__ import annotations

import json
import logging
import queue
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from io import BytesIO
from pathlib import Path
from typing import IO

from elasticdl._core import PsClient, Store
from elasticdl.backends.base import Float32
from elasticdl.collective.pending import parts_of
from elasticdl.collective.rounds import Marks, Minibatch
from elasticdl.errors import CheckpointError, ElasticdlError

log = logging.getLogger(__name__)

_LENGTH_BYTES = 8
_COPIED_BYTES = 1 << 20  # at once, from file to file


@dataclass(frozen=True, slots=True)
class Update:
    """What all ranks apply to their stores.

    version: of the parameters after it; one of skipped minibatches alone makes none.
    means: of the dense gradient and of the change of the state; not looked at if all are skipped.
    """

    version: int
    minibatches: tuple[Minibatch, ...]
    learning_rate: float
    means: tuple[Float32, ...]

    @property
    def is_skipped(self) -> bool:
        """Whether all of its minibatches are."""
        return all(minibatch.is_skipped for minibatch in self.minibatches)

    def kept(self) -> Update:
        """Return it with arrays of its own."""
        means = () if self.is_skipped else tuple(values.copy() for values in self.means)
        return Update(self.version, self.minibatches, self.learning_rate, means)

    def apply(self, store: Store, client: PsClient) -> None:
        """Apply it; `client` is of the same store."""
        if self.is_skipped:
            for minibatch in self.minibatches:
                client.skip(minibatch.task_id, minibatch.lease, minibatch.index)
            return
        dense_grad, state_delta = self.means
        members = [astuple(part) for part in parts_of(self.minibatches)]
        version = store.apply_round(members, self.learning_rate, dense_grad, state_delta)
        if version != self.version:
            raise ElasticdlError(
                f"an update has made version {version}, expected {self.version}; this is a defect"
            )

    def lacking(self, version: int, marks: Marks) -> Update | None:
        """Return what a store of a version lacks of it, given the marks of that store."""
        if not self.is_skipped:
            return self if self.version > version else None
        lacks = tuple(m for m in self.minibatches if m.index >= marks.next_index(m.task_id))
        return Update(self.version, lacks, self.learning_rate, ()) if lacks else None


def marks_in(client: PsClient) -> Marks:
    """Return what a store has of each task."""
    (applied,) = client.audit()
    return Marks.of([task, 0, next_index] for task, next_index, _ in applied.tolist())


class Giver:
    """What rank 0 gives."""

    def __init__(self, write: Callable[[Path], object]) -> None:
        """Begin to write it.

        Args:
            write: Writes the store, as of one instant, into a folder; called by another thread.
        """
        self._write = write
        self._error: BaseException | None = None
        self._files: deque[IO[bytes]] = deque()
        self._closing = threading.Lock()
        self._is_written = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="giver", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="elasticdl-give-") as scratch:
                folder = Path(scratch) / "parameters"
                self._write(folder)
                paths = sorted(folder.iterdir())
                sizes = [[path.name, path.stat().st_size] for path in paths]
                words = json.dumps(sizes).encode()
                self._files.append(BytesIO(len(words).to_bytes(_LENGTH_BYTES, "little") + words))
                self._files.extend(path.open("rb") for path in paths)
            # What is open can be read until it is closed; nothing lies about any more.
        except BaseException as error:
            self._error = error
        with self._closing:
            self._is_written = True
            if self._is_closed:
                self._close_files()

    def next_piece(self, most_bytes: int, *, waits: bool = False) -> tuple[bytes, bool]:
        """Return what comes next, and whether it is the last; no bytes: it is not written yet.

        Raises:
            CheckpointError: It could not be written.
        """
        if waits:
            self._thread.join()
        if not self._is_written:
            return b"", False
        if self._error is not None:
            raise self._error
        parts: list[bytes] = []
        left = most_bytes
        while self._files and left:
            parts.append(self._files[0].read(left))
            left -= len(parts[-1])
            if not parts[-1]:
                self._files.popleft().close()
        return b"".join(parts), not self._files

    def close(self) -> None:
        """Give nothing more. What is being written is removed when it is whole."""
        with self._closing:
            self._is_closed = True
            if self._is_written:
                self._close_files()

    def _close_files(self) -> None:
        while self._files:
            self._files.popleft().close()


class Stage:
    """What a joiner has so far; `open_store` loads it from a folder."""

    def __init__(
        self, open_store: Callable[[str], tuple[Store, PsClient]], most_backlog: int
    ) -> None:
        """Wait for pieces.

        Args:
            open_store: Returns the store that was written into a folder, and a client of it.
            most_backlog: How many updates are kept before the others wait.
        """
        self._open_store = open_store
        self._most_backlog = most_backlog
        self._pieces: queue.SimpleQueue[tuple[bytes, bool] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._backlog: deque[Update] = deque()
        self._has_all_pieces = self._is_abandoned = False
        self._opened: tuple[Store, PsClient] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="stage", daemon=True)
        self._thread.start()

    def take(self, piece: bytes, is_last: bool) -> None:
        """Take the next piece."""
        self._has_all_pieces = is_last
        self._pieces.put((piece, is_last))

    def add(self, update: Update) -> None:
        """Keep an update. Its arrays are the stage's from here on."""
        with self._changed:
            self._backlog.append(update)
            self._changed.notify_all()

    def caught_up(self) -> tuple[Store, PsClient] | None:
        """Return the store, with a client, once it has all updates that were added; else None.

        The last one is waited for, and all where they have become too many.

        Raises:
            CheckpointError: What was given does not fit together, or cannot be written.
        """
        with self._changed:
            is_long = self._has_all_pieces and len(self._backlog) > self._most_backlog
            is_near = self._opened is not None and len(self._backlog) <= 1
            if self._error is None and not is_long and not is_near:
                return None
            self._changed.wait_for(
                lambda: self._error or (self._opened is not None and not self._backlog)
            )
            if self._error is not None:
                raise self._error
            self.abandon()
            return self._opened

    def abandon(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._is_abandoned = True
            self._pieces.put(None)
            self._changed.notify_all()

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            opened = self._receive()
            if opened is not None:
                self._replay(*opened)
        except BaseException as error:
            with self._changed:
                self._error = (
                    CheckpointError(f"what another worker has given cannot be kept: {error}")
                    if isinstance(error, OSError)
                    else error
                )
                self._changed.notify_all()

    def _receive(self) -> tuple[Store, PsClient] | None:
        with tempfile.TemporaryFile(prefix="elasticdl-given-") as stream:
            is_last = False
            while not is_last:
                match self._pieces.get():
                    case None:
                        return None
                    case piece, is_last:
                        stream.write(piece)
            stream.seek(0)
            with tempfile.TemporaryDirectory(prefix="elasticdl-given-") as folder:
                unpack(stream, Path(folder))
                return self._open_store(folder)

    def _replay(self, store: Store, client: PsClient) -> None:
        """Make the updates that the store lacks, until there is no need for more."""
        version = client.pull([], training=False, dense=False).version
        marks = marks_in(client)
        with self._changed:
            log.info("version %d is here, and %d updates", version, len(self._backlog))
            self._opened = store, client
            self._changed.notify_all()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._backlog or self._is_abandoned)
                if self._is_abandoned:
                    return
                update = self._backlog[0]
            if (lacking := update.lacking(version, marks)) is not None:
                lacking.apply(store, client)
            with self._changed:
                self._backlog.popleft()
                self._changed.notify_all()


def unpack(stream: IO[bytes], folder: Path) -> None:
    """Write the files of what a `Giver` has given.

    Raises:
        CheckpointError: It is not that.
    """
    with ExitStack() as files:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        for name, size in json.loads(stream.read(length)):
            if Path(name).name != name:
                raise CheckpointError(f"a worker gave a file called {name!r}, expected a name")
            file = files.enter_context((folder / name).open("wb"))
            left = size
            while left:
                part = stream.read(min(left, _COPIED_BYTES))
                if not part:
                    raise CheckpointError(
                        f"a worker gave {size - left} bytes of {name}, expected {size}"
                    )
                file.write(part)
                left -= len(part)
