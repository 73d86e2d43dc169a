"""A worker's own copy of all parameters, in a job of all-reduce.

The copy is a store in this process, as in a job of one process: it has the same optimizers,
checkpoints and watermarks. The worker also serves the copy, so that the master can ask for a
checkpoint and for the proof as it asks a ps replica. All copies of a world get the same updates, so
they have the same bits.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl._core import PsClient, PsServer, Store
from elasticdl.backends.base import Float32, ModelDescription
from elasticdl.checkpoints.dense import begin_from
from elasticdl.checkpoints.hand_over import write_hand_over
from elasticdl.checkpoints.remote import restore
from elasticdl.checkpoints.versions import resolve
from elasticdl.data.updates import UpdateOrder
from elasticdl.errors import CheckpointError, ElasticdlError, ModelError
from elasticdl.job import Strategy
from elasticdl.locations import Location, parse
from elasticdl.packages.all_reduce.agreement import check_agreement, described
from elasticdl.packages.all_reduce.collective.pending import ALL, PendingSums, parts_of
from elasticdl.packages.all_reduce.collective.rounds import Marks, OfferedMinibatch
from elasticdl.packages.all_reduce.collective.state_rules import NO_RULES, StateRules
from elasticdl.packages.all_reduce.collective.transfer import Layout
from elasticdl.packages.all_reduce.staging import Giver, StagedParameters

_HEADER_BYTES = 8
_BUSY_SECONDS = 60.0  # for a checkpoint that the master has asked for, on a disk that answers


class Replica:
    """The parameters of this worker, and the progress of each task in them.

    With a global batch size an update may take several rounds. The sums of these rounds are
    **pending** until they are applied. A checkpoint does not contain them; a worker that gets the
    parameters also gets the pending sums.

    lineage: Grows when the parameters are replaced by others. Gradients of the earlier parameters
        are useless then, even if the version is the same.
    position: Grows with each round that has counted something, from the version at the start; -1
        without parameters.
    rules: The rules of the state; known once the model is declared.
    updates: In a deterministic job, the tasks of each update; None before the first world.
    next_update: In a deterministic job, the update that is being made.
    """

    def __init__(
        self,
        serve: Callable[[Store], PsServer],
        init: Location | None,
        global_batch_size: int | None = None,
        part: str = "",
        order_updates: Callable[[int], UpdateOrder | None] = lambda per_epoch: None,
        scratch: Path | None = None,
    ) -> None:
        """Begin without parameters.

        Args:
            serve: Serves a store, and returns its server.
            init: The checkpoint that the job begins with, if any (`--checkpoint_dir_for_init`).
            global_batch_size: The records of an update; None: the records of one round.
            part: The folder in a checkpoint that has these parameters; "": the checkpoint itself.
            order_updates: Given the number of tasks of an epoch, returns which tasks make which
                update of a deterministic job.
            scratch: The folder for files from URLs, and for files from and to other workers; None:
                the system's folder for temporary files.
        """
        self._scratch = scratch
        self._serve = serve
        self._init = init
        self.global_batch_size = global_batch_size
        self._part = part
        self.rules = NO_RULES
        self.pending = PendingSums()
        self._order_updates = order_updates
        self.updates: UpdateOrder | None = None
        self.next_update = 0
        self._model: ModelDescription | None = None
        self._first: tuple[Float32, Float32] | None = None
        self._store: Store | None = None
        self._server: PsServer | None = None
        self._client: PsClient | None = None
        self._spare: tuple[Store, PsClient] | None = None  # with the initial values
        self._stage: StagedParameters | None = None
        self._left: StagedParameters | None = None  # of a world that has ended
        self.marks = Marks()
        self.version = self.position = -1
        self._learning_rate = 0.0
        self.lineage = 0

    def declare(self, model: ModelDescription, dense: Float32, state: Float32) -> None:
        """Set the model and its initial values.

        Raises:
            ModelError: It has embedding tables.
        """
        if model.tables:
            names = ", ".join(repr(table.name) for table in model.tables)
            raise ModelError(
                f"the model has embedding tables ({names}), and with --distribution_strategy="
                f"{Strategy.ALLREDUCE} each worker would hold all their rows: expected "
                f"--distribution_strategy={Strategy.HYBRID} or {Strategy.PARAMETER_SERVER}, or "
                "keras.layers.Embedding instead of elasticdl.layers.Embedding if the tables are "
                "small"
            )
        self._model, self._first = model, (dense, state)
        self.rules = StateRules.of(
            [
                (range(v.offset, v.offset + math.prod(v.shape)), v.momentum)
                for v in model.state
                if v.trainable
            ]
        )
        self.pending = self._nothing_pending()
        # The store is made here, where no worker waits. Later, others would wait while a joiner
        # makes it.
        self._spare = self._fresh()

    def order_updates(self, tasks_per_epoch: int) -> None:
        """Set the number of tasks of an epoch; it is the same in each world."""
        if self.updates is None:
            self.updates = self._order_updates(tasks_per_epoch)
            self._find_next_update()

    def _find_next_update(self) -> None:
        """Find the next update from the marks of a checkpoint, which has only whole updates."""
        if self.updates is not None:
            made = (self.updates.update_of(task) for task, _, _ in self.marks.rows())
            self.next_update = 1 + max(made, default=-1)

    def is_due(self, task_id: int) -> bool:
        """Return whether a task belongs to the update that is being made, or to an earlier one."""
        return self.updates is None or self.updates.update_of(task_id) <= self.next_update

    def has(self, task_id: int, end: int) -> bool:
        """Return whether updates were made with the first `end` minibatches of a task."""
        is_pending = any(m.task_id == task_id for m in self.pending.minibatches)
        return not is_pending and self.marks.next_index(task_id) >= end

    @property
    def num_numbers(self) -> int:
        """Return the size of a gradient together with the change of the state."""
        return sum(values.size for values in self.first)

    @property
    def first(self) -> tuple[Float32, Float32]:
        """The initial values: dense, and state."""
        assert self._first is not None
        return self._first

    @property
    def client(self) -> PsClient:
        """Return the client that reads the parameters; they must be here."""
        assert self._client is not None, "a worker without parameters is asked for them"
        return self._client

    @property
    def address(self) -> str:
        """The address at which the parameters are served; "" if there are none."""
        return "" if self._server is None else self._server.address

    def begin(self, checkpoint: str) -> None:
        """Read the parameters of a checkpoint of this job; "": those that the job begins with.

        Raises:
            CheckpointError: The checkpoint cannot be restored.
        """
        if checkpoint:
            own = parse(checkpoint) / self._part if self._part else parse(checkpoint)
            self._restore(lambda: restore(own, scratch=self._scratch))
        elif self._init is not None:
            init = resolve(self._init)
            self._restore(lambda: begin_from(init, has_rows=not self._part, scratch=self._scratch))
        else:
            self._take(*self._take_first(), None)
        self._find_next_update()

    def _restore(self, read: Callable[[], Store]) -> None:
        self._spare = self._left = None  # not beside what is read
        self._take_given(read(), None)

    def dump(self) -> bytes:
        """Return everything: parameters, optimizer slots, state, watermarks, marks."""
        with self._scratch_folder("give") as scratch:
            folder = Path(scratch) / "parameters"
            self.write(folder)
            return self._pack([(file.name, file.read_bytes()) for file in sorted(folder.iterdir())])

    def write(self, folder: Path) -> None:
        """Write the store as it is at one instant; updates are made meanwhile.

        Raises:
            CheckpointError: A file cannot be written.
        """
        assert self._store is not None
        store = self._store
        write_hand_over(folder, lambda to: store.checkpoint(to, _BUSY_SECONDS))

    def _scratch_folder(self, what: str) -> tempfile.TemporaryDirectory[str]:
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=f"elasticdl-{what}-", dir=self._scratch)

    def outline(self) -> bytes:
        """Return everything but the vectors: watermarks, marks, position, and the pending sums."""
        assert self._store is not None
        return self._pack([], self._store.outline())

    def giver(self) -> Giver:
        """Return the giver that sends the vectors, part by part."""
        assert self._store is not None
        return Giver(self._store, self._layout(self._store))

    def _layout(self, store: Store) -> Layout:
        dense, state = self.first
        return Layout(dense.size, state.size, store.num_slots)

    def _pack(self, files: Sequence[tuple[str, bytes]], store_outline: str = "") -> bytes:
        assert self._model is not None
        header: dict[str, Any] = {
            "model": described(self._model),
            "store": store_outline,
            "files": [[name, len(content)] for name, content in files],
            "marks": self.marks.rows(),
            "version": self.version,
            "position": self.position,
            "learning_rate": self._learning_rate,
            "pending": [astuple(minibatch) for minibatch in self.pending.minibatches],
            "sums": list(self.pending.sums),
            "next_update": self.next_update,
        }
        parts = [content for _, content in files]
        parts += [array.tobytes() for sums in self.pending.sums.values() for array in sums]
        words = json.dumps(header).encode()
        return b"".join([len(words).to_bytes(_HEADER_BYTES, "little"), words, *parts])

    def load(self, data: bytes) -> None:
        """Load what another worker has dumped.

        Raises:
            CheckpointError: The parts do not fit together.
            ModelMismatchError: The other worker has another model.
        """
        header, offset = self._header_of(data)
        # The spare stores are freed first, so that the memory holds one store at a time.
        self._spare = self._left = None
        with self._scratch_folder("given") as scratch:
            for name, size in header["files"]:
                # The name comes from another process: it must not lead out of the folder.
                if Path(name).name != name:
                    raise CheckpointError(f"a worker gave a file called {name!r}, expected a name")
                (Path(scratch) / name).write_bytes(data[offset : offset + size])
                offset += size
            self._take_given(Store.restore(scratch), Marks.of(header["marks"]))
        self._take_outline(header, data[offset:])

    def _header_of(self, data: bytes) -> tuple[dict[str, Any], int]:
        """Return the header, and the offset of the arrays behind it."""
        end = _HEADER_BYTES + int.from_bytes(data[:_HEADER_BYTES], "little")
        header = json.loads(data[_HEADER_BYTES:end])
        assert self._model is not None
        check_agreement(self._model, header["model"])
        return header, end

    def _take_outline(self, header: dict[str, Any], sums: bytes) -> None:
        self.marks = Marks.of(header["marks"])
        self.position, self._learning_rate = header["position"], header["learning_rate"]
        self.next_update = header["next_update"]
        minibatches = [OfferedMinibatch(*values) for values in header["pending"]]
        if not header["sums"]:
            self.pending = self._nothing_pending()
            self.pending.minibatches += minibatches
            return
        size = self.first[0].size
        rows = np.frombuffer(sums, np.float32).reshape(len(header["sums"]), -1)
        parts = [(row[:size].copy(), row[size:].copy()) for row in rows]
        by_key: dict[int, tuple[Float32, ...]] = dict(zip(header["sums"], parts, strict=True))
        self.pending = PendingSums(minibatches, by_key, self.rules)

    # --- without parameters, which are on their way ----------------------------------------------

    @property
    def is_staging(self) -> bool:
        """Return whether rounds are only noted, until the parameters are here."""
        return self._stage is not None

    def begin_stage(self, outline: bytes) -> StagedParameters:
        """Take part in rounds from now on; return the stage that gathers the parameters.

        Raises:
            ModelMismatchError: The worker that gives them has another model.
        """
        header, offset = self._header_of(outline)
        self._take_outline(header, outline[offset:])
        self.version = header["version"]
        # The content of this store does not matter: all of it is replaced. So a store of an earlier
        # stage, or the one with the initial values, is used again.
        left, self._left = self._left, None
        store, client = self._take_first() if left is None else (left.store, left.client)
        store.take_outline(header["store"])
        self._stage = StagedParameters(store, client, self._layout(store))
        return self._stage

    def _take_first(self) -> tuple[Store, PsClient]:
        """Return a store with the initial values; make another one if it was used."""
        first, self._spare = self._spare or self._fresh(), None
        return first

    def _fresh(self) -> tuple[Store, PsClient]:
        store = Store()
        return store, self._declared(store)

    def end_stage(self) -> bool:
        """Adopt the parameters if they are all here; return whether they are."""
        stage = self._stage
        if stage is None or not stage.is_whole:
            return False
        self._stage = None
        self._adopt(stage.store, stage.client)
        return True

    def drop_stage(self) -> None:
        """Drop the stage: the world has ended before the parameters were complete."""
        if self._stage is None:
            return
        self._left, self._stage = self._stage, None
        self.marks, self.pending = Marks(), self._nothing_pending()
        self.version = self.position = -1

    # --- updates ---------------------------------------------------------------------------------

    def _take_given(self, store: Store, marks: Marks | None) -> None:
        self._take(store, self._declared(store), marks)

    def _take(self, store: Store, client: PsClient, marks: Marks | None) -> None:
        self.marks = _marks_in(client) if marks is None else marks
        self._adopt(store, client)
        self.position, self.pending = self.version, self._nothing_pending()

    def _declared(self, store: Store) -> PsClient:
        assert self._model is not None
        client = PsClient.in_process(store)
        client.declare(json.dumps(asdict(self._model)), *self.first)
        return client

    def _adopt(self, store: Store, client: PsClient) -> None:
        if self._server is not None:
            self._server.stop()
        self._store, self._client = store, client
        self._spare = self._left = None
        self._server = self._serve(store)
        self.version = client.pull([], training=False, dense=False).version
        self.lineage += 1

    def count(
        self,
        minibatches: Sequence[OfferedMinibatch],
        learning_rate: float | None,
        means: Sequence[Float32],
    ) -> None:
        """Add the minibatches that a round has counted; make an update if it has all its records.

        Args:
            minibatches: Each is the next one of its task.
            learning_rate: The learning rate of the update; None if all minibatches are skipped.
            means: The mean dense gradient over the records of all, and the change of the state by
                `rules`. They are not read if all minibatches are skipped.
        """
        self._note(minibatches, learning_rate)
        if self.global_batch_size is None:
            self._update(minibatches, means)
            return
        self.pending.add(minibatches, means)
        if self.pending.num_records >= self.global_batch_size:
            self.flush()

    def count_each(
        self,
        minibatches: Sequence[OfferedMinibatch],
        learning_rate: float | None,
        values: Sequence[Sequence[Float32]],
    ) -> None:
        """Add the minibatches that a round of a deterministic job has counted; make a whole update.

        Args:
            minibatches: Each is the next one of its task, which is due.
            learning_rate: The learning rate of the update; None if all minibatches are skipped.
            values: The dense gradient of each minibatch, and its change of the state. They are not
                read if the minibatch is skipped.
        """
        assert self.updates is not None
        self._note(minibatches, learning_rate)
        for minibatch, means in zip(minibatches, values, strict=True):
            self.pending.add([minibatch], means, key=minibatch.task_id)
        tasks = self.updates.tasks_of(self.next_update)
        if self.pending.has_tasks(tasks):
            self.next_update += 1
            self._apply_pending(tasks)

    def _note(self, minibatches: Sequence[OfferedMinibatch], learning_rate: float | None) -> None:
        for minibatch in minibatches:
            self.marks.count(minibatch)
        self.position += 1
        if learning_rate is not None:  # 0 is a rate too: a schedule may end with it
            self._learning_rate = learning_rate

    def _nothing_pending(self) -> PendingSums:
        return PendingSums(rules=self.rules)

    def flush(self) -> None:
        """Make an update of the pending minibatches."""
        self._apply_pending((ALL,))

    def _apply_pending(self, keys: Sequence[int]) -> None:
        pending, self.pending = self.pending, self._nothing_pending()
        self._update(pending.minibatches, pending.means(keys))

    def _update(self, minibatches: Sequence[OfferedMinibatch], means: Sequence[Float32]) -> None:
        if self._stage is not None:
            store, client = self._stage.store, self._stage.client
        else:
            assert self._store is not None
            store, client = self._store, self.client
        # Only the watermarks move then: the version stays.
        if all(minibatch.is_skipped for minibatch in minibatches):
            for minibatch in minibatches:
                client.skip(minibatch.task_id, minibatch.lease, minibatch.index)
            return
        dense_grad, state_delta = means
        members = [astuple(part) for part in parts_of(minibatches)]
        version = store.apply_round(members, self._learning_rate, dense_grad, state_delta)
        if version != self.version + 1:
            raise ElasticdlError(
                f"an update has made version {version}, expected {self.version + 1}; this is a "
                "defect"
            )
        self.version = version

    def hand_over(self, folder: Path) -> int:
        """Write the parameters for a successor; return their version.

        Raises:
            CheckpointError: A file cannot be written.
        """
        assert self._store is not None
        store = self._store
        own = folder / self._part if self._part else folder
        return write_hand_over(own, lambda to: store.checkpoint(to, _BUSY_SECONDS))

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.stop()


def _marks_in(client: PsClient) -> Marks:
    """Return the marks from the watermarks of a store."""
    (applied,) = client.audit()
    return Marks.of([task, 0, next_index] for task, next_index, _ in applied.tolist())
