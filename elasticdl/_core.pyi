"""The Rust data plane: parameter store, its wire, and record files.

Numbers cross as NumPy arrays, C-contiguous, and every call that moves bytes releases the GIL.
Errors are those of `elasticdl.errors`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BlockInfo",
    "CsvFields",
    "DrivenReplica",
    "LineReader",
    "Progress",
    "PsClient",
    "PsServer",
    "Pulled",
    "RecordBlocks",
    "RecordReader",
    "RecordWriter",
    "Ring",
    "RingListener",
    "Round",
    "ServedTables",
    "Store",
    "TFRecordReader",
    "TFRecordWriter",
    "check_csv",
    "check_parquet_pages",
    "crc32c",
    "decode_examples",
    "encode_examples",
    "is_sealed_manifest",
    "json_columns",
    "keys_of_strings",
    "pack_examples",
    "parquet_footer",
    "parse_libsvm",
    "parse_request",
    "repair_recordio",
    "repair_tfrecord",
    "seal_manifest",
    "take_hot_keys",
    "traffic",
]

# --- look-ups of an export (crate edl-serve) ------------------------------------------------------

@final
class ServedTables:
    """The tables of one version of an export, to look rows up in; they never change."""

    def __new__(
        cls, tables: Sequence[tuple[str, int]], folder: PathLike[str] | None = None
    ) -> ServedTables:
        """Make tables without rows.

        Args:
            tables: Name and dim of each.
            folder: Where rows to come lie in files without a name, which are mapped into memory;
                None: in memory.
        """

    def apply(self, folder: PathLike[str], replicas: str) -> ServedTables:
        """Return these tables with another version, whose files have their checksums.

        Args:
            folder: Of the version.
            replicas: What its manifest says of each replica's part, as JSON.

        Raises:
            ExportError: A file is missing or damaged, or is of other tables; names it.
        """

    def look_up(
        self, table: int, ids: NDArray[np.int64], unseen: float, out: NDArray[np.float32]
    ) -> None:
        """Write the rows of ids into an array.

        Args:
            table: Its number.
            ids: Of any shape.
            unseen: What each weight of an id reads as that has no row.
            out: As many rows as ids, of the table's dim.

        Raises:
            ExportError: There is no such table, or `out` has another length.
        """

    def ids(self, table: int) -> NDArray[np.int64]:
        """Return the ids of a table that have a row, in no order."""

    @property
    def num_layers(self) -> int:
        """The most layers that a look-up goes through."""

    @property
    def num_bytes(self) -> int:
        """What the rows take."""

# --- parameter store (crates edl-optim, edl-store, edl-ps) ---------------------------------------

def parse_request(
    content: bytes,
    features: Sequence[tuple[str, str, Sequence[int | None]]],
    most_records: int,
) -> tuple[list[tuple[NDArray[np.int64 | np.uint64 | np.float64] | list[str], list[int]]], bool]:
    """Return the columns of a request in JSON, flat with their shapes, and whether it is single.

    Args:
        content: `{"instances": [...]}`, `{"instance": ...}` or `{"inputs": {...}}`.
        features: Of each its name, type ("str" for text), and the shape of a record; None where
            it may be of any length.
        most_records: How many it may have.

    Raises:
        DataError: It is something else; names the record and the feature.
        RequestTooLargeError: It has more records.
    """

def take_hot_keys() -> list[tuple[str, int, list[tuple[int, int]]]]:
    """Return the keys that the clients of this process looked up most since the last call.

    A sample of the minibatches of training is counted, the first one among them.

    Returns:
        Of each table its name, the ids that were counted, and (key, how many of the ids it is) of
        at most five keys that are a hundredth of them or more.
    """

def traffic() -> tuple[int, int]:
    """Return the bytes that all clients and servers of this process have sent, and received.

    They are counted as they were before TLS.
    """

@final
class Progress:
    """How far something long has come, for another thread to look at."""

    def __new__(cls) -> Progress: ...
    def note(self) -> None:
        """Count a piece."""

    @property
    def pieces(self) -> int:
        """How many pieces are done; a number that stands still for long says that it hangs."""

@final
class Store:
    """The part of a model that one ps replica holds; also the whole model, for `Local`."""

    def __new__(
        cls,
        replica: int = 0,
        num_replicas: int = 1,
        disk: tuple[str | PathLike[str], int] | None = None,
    ) -> Store:
        """Make an empty store.

        Args:
            replica: Its number.
            num_replicas: How many there are.
            disk: The folder to which rows go that are not used and do not fit into so many bytes
                of memory; None: all are in memory.

        Raises:
            StoreError: The folder cannot be made.
        """

    @staticmethod
    def restore(
        checkpoint: str,
        replica: int = 0,
        num_replicas: int = 1,
        keep_watermarks: bool = True,
        progress: Progress | None = None,
        disk: tuple[str | PathLike[str], int] | None = None,
    ) -> Store:
        """Load this replica's part of a checkpoint written by any number of replicas.

        Args:
            checkpoint: A version folder with its `manifest.json`, or what a replica of the same
                place has handed over.
            replica: Number of the replica to restore.
            num_replicas: How many there are now.
            keep_watermarks: False to start a new job from the parameters.
            progress: Counts what is read meanwhile.
            disk: As of an empty store.

        Raises:
            CheckpointError: Missing, torn (checksum) or inconsistent files; names the file.
        """

    @staticmethod
    def restore_parts(
        rows: str | None,
        vectors: str | None,
        replica: int = 0,
        num_replicas: int = 1,
        progress: Progress | None = None,
        disk: tuple[str | PathLike[str], int] | None = None,
    ) -> Store:
        """Load this replica's rows of one checkpoint and its vectors of another, for a new job.

        With one of the two alone, the store holds the model without the other part. With both, its
        version is that of the vectors; versions of rows are less by as much as theirs was higher.

        Args:
            rows: As `checkpoint` of `restore`.
            vectors: Likewise.
            replica: Number of the replica to restore.
            num_replicas: How many there are now.
            progress: Counts what is read meanwhile.
            disk: As of an empty store.

        Raises:
            CheckpointError: As of `restore`; also if the two are of different models.
        """

    def stats(self) -> str:
        """Return counters as JSON, as `PsClient.stats` does of each replica."""

    @property
    def lost_rows(self) -> str | None:
        """Why rows that were brought to disk cannot be read again, if they cannot.

        The store answers nothing more then.
        """

    def modulate_learning_rate(self) -> None:
        """From now on, divide the learning rate of each update by its staleness if above 1."""

    def refuse_leases_before(self, first: int) -> None:
        """From now on, let in no lease below this one, of whichever task.

        What was trained before the lease may be missing here. `GapError` tells the worker.
        """

    def export(self, request: str) -> str:
        """Write this replica's part of the tables, as `PsClient.export` does for all."""

    def begin_with(
        self, table: str, source: str, keys: NDArray[np.int64], rows: NDArray[np.float32]
    ) -> None:
        """Have a table begin with rows, as if they were initial values; others' are left out.

        Args:
            table: A table of the model that will be declared.
            source: Where the rows come from, for the message if they do not fit the table.
            keys: Shape (n,).
            rows: Shape (n, dim).

        Raises:
            StoreError: A model was declared, or restored, already.
        """

    def set_memory_limit(self, num_bytes: int | None) -> None:
        """Create no more rows once all rows take so many bytes; None: no limit.

        A pull or push that would go beyond is refused whole, with `MemoryLimitError`.
        """

    def checkpoint(self, directory: str, wait_seconds: float | None = None) -> str:
        """Write this replica's files into `directory` and return its manifest entry as JSON.

        Updates go on meanwhile, and are not part of it.

        Args:
            directory: It is created.
            wait_seconds: How long an earlier one that is still being written is waited for; None:
                not at all.

        Raises:
            CheckpointError: A file cannot be written, or the earlier one takes longer.
        """

    def redo(
        self, directory: str | PathLike[str], limit_bytes: int, progress: Progress | None = None
    ) -> tuple[int, int]:
        """Make the changes that a predecessor has noted in its redo log and that this store lacks.

        From now on what changes this store is noted there.

        Args:
            directory: Of the log; it is created.
            limit_bytes: What its files may take.
            progress: Counts what is made again.

        Returns:
            How many updates were made, and how many minibatches were in them.

        Raises:
            CheckpointError: Files cannot be read or made.
        """

    def trim_redo_log(self) -> tuple[int, bool, str | None] | None:
        """Remove what lies before a checkpoint that is whole from the redo log.

        Returns:
            The bytes of its files; whether a checkpoint should come soon, from which it goes on;
            why nothing is noted until then, if so. None without a log.
        """

    def outline(self) -> str:
        """Return what it holds beside its vectors, for `take_outline`; there are no tables."""

    def take_outline(self, outline: str) -> None:
        """Hold that in place of what it held beside its vectors.

        Raises:
            StoreError: The model has tables, or that is no outline.
        """

    @property
    def num_slots(self) -> int:
        """How many numbers the optimizer keeps for each of the dense vector."""

    def read_part(self, start: int, end: int, out: NDArray[np.float32]) -> None:
        """Copy a part of the vectors: of the dense vector, of each slot, of the state.

        Args:
            start: Counts the dense values, and after them those of the state.
            end: Of the part, which is `start` to `end`.
            out: Shape (n,): as many as the part has, slots and all.

        Raises:
            StoreError: The model has no such part, or `out` another length.
        """

    def write_part(self, start: int, end: int, values: NDArray[np.float32]) -> None:
        """Replace a part of the vectors by what `read_part` has copied.

        A store that makes the same updates as another has the same bits in a part from then on.
        """

    def apply_round(
        self,
        members: Sequence[tuple[int, int, int, int, int]],
        learning_rate: float,
        dense_grad: NDArray[np.float32],
        state_delta: NDArray[np.float32],
    ) -> int:
        """Apply one gradient of several minibatches as one update; return the model version.

        For a whole model without tables, which nobody else updates meanwhile. The gradient is
        clipped as the model says.

        Args:
            members: Of each task: its number, the lease, the first minibatch, how many follow each
                other, and the records in them.
            learning_rate: Of this update.
            dense_grad: The gradient of the mean loss over all of them.
            state_delta: The mean of their changes of the state.

        Raises:
            StaleLeaseError, GapError: As `PsClient.push` of one of them; nothing has changed.
            ValueError: A task is there twice, or a minibatch has been applied before.
        """

class _FarFiles(Protocol):
    """Knows how to send files to where no file system reaches; called from any thread."""

    def scratch(self, url: str) -> str:
        """Return a folder of this machine to write the files for a URL to."""

    def send(self, scratch: str, url: str) -> Iterator[object]:
        """Send what was written there and remove it here; yields after each file."""

@final
class Round:
    """Gradients that replica 0 has applied together."""

    @property
    def version(self) -> int:
        """Of replica 0 after it."""

    @property
    def steps(self) -> list[tuple[int, int, int]]:
        """(task, lease, minibatch) of each gradient."""

@final
class DrivenReplica:
    """A replica without a server, for simulations: what would wait says so, and is asked again.

    A connection is a number. The table is the first of the model; keys come once.
    """

    def __new__(
        cls,
        store: Store,
        *,
        layout: int = 0,
        awaits_move: bool = False,
        max_staleness: int | None = None,
        grads_to_wait: int | None = None,
    ) -> DrivenReplica:
        """As `PsServer`."""

    @property
    def store(self) -> Store | None:
        """As of `PsServer`."""

    def client(self) -> PsClient:
        """Return a client of the store that is served now, whichever part of the model it is.

        Whoever asks it for keys knows that they are there.
        """

    def entrance(self, layout: int, updates: Sequence[tuple[int, int]]) -> tuple[bool, str | None]:
        """Return whether a request may be done now, and what is said if its layout is over.

        Args:
            layout: Of the request.
            updates: (task, minibatch) of those that it would make.
        """

    def move_step(self, step: str, others: Mapping[str, DrivenReplica]) -> str:
        """Do a step of a move, as `PsClient.move_step`.

        Args:
            step: As JSON.
            others: All that can be reached, by address.
        """

    def begin_task(self, connection: int, task: int, lease: int) -> int:
        """Begin a lease; return the minibatch that is next."""

    def end_task(self, task: int, lease: int) -> None:
        """End a lease."""

    def pull(
        self, connection: int, step: tuple[int, int, int] | None, keys: Sequence[int]
    ) -> int | None:
        """Return this replica's version; None: not yet. A pull that need not wait has no step."""

    def push(
        self,
        connection: int,
        step: tuple[int, int, int],
        keys: Sequence[int],
        grads: Sequence[float],
        pulled_version: int,
        num_records: int,
    ) -> tuple[Round | None, int, int | None]:
        """Hand in a gradient; return its round, its staleness, and the version if it is applied."""

    def commit(self, round: Round) -> None:
        """Do what replica 0 has done."""

    def lost(self, connection: int) -> None:
        """A connection is lost."""

@final
class PsServer:
    """Serves a store on a socket, from threads that never take the GIL.

    On Linux clients on the same host are served on a Unix socket, which they find by themselves.
    """

    def __new__(
        cls,
        store: Store,
        host: str,
        port: int,
        token: bytes,
        *,
        max_staleness: int | None = None,
        grads_to_wait: int | None = None,
        sync_version_tolerance: int = 0,
        tls: tuple[PathLike[str], PathLike[str], PathLike[str]] | None = None,
        far: _FarFiles | None = None,
        is_copy: bool = False,
        layout: int = 0,
        awaits_move: bool = False,
    ) -> PsServer:
        """Listen and serve, until stopped. All replicas of a job get the same settings.

        Args:
            store: What to serve.
            host: Where to listen.
            port: 0 for one that the system chooses.
            token: The job's token.
            max_staleness: Most updates, of any worker, between a pull and its push.
            grads_to_wait: Average so many gradients to one update; None: apply each as it comes.
            sync_version_tolerance: With `grads_to_wait`: how many updates older the parameters of
                a gradient may be.
            tls: PEM files of the authority, the certificate and the key with which to speak TLS on
                all but the Unix socket; new connections take what the files hold then. None: no
                TLS.
            far: Sends checkpoints that are to lie behind URLs; None: they are refused.
            is_copy: This is a worker with a copy of the parameters. Its certificate names a worker,
                and only the master may connect.
            layout: Counts the moves to other numbers of replicas; that of the store.
            awaits_move: Serve nothing until a move has brought a store.

        Raises:
            LaunchError: The port is taken; names the address.
            ValueError: A file is missing or holds something else; names it.
        """

    @property
    def address(self) -> str:
        """`host:port` with the port that the system chose, if 0 was asked for."""

    @property
    def store(self) -> Store | None:
        """The store that is served now; None: none, before or after a move."""

    def stop(self) -> None:
        """End all connections, after the requests in work; the port is free when it returns."""

    def record(self, most: int) -> None:
        """Record what is done for each request from now on, for so many requests at most."""

    def take_recorded(self) -> list[tuple[str, int, tuple[int, int] | None, float, float]]:
        """End recording; return what was recorded.

        Returns:
            Of each request: what was asked, the number of its connection, (task, minibatch) if it
            is of one, begin and end in seconds since 1970.
        """

@final
class Pulled:
    """What one pull brought, and what its push needs to know of it.

    Any number may be kept before they are pushed. The arrays belong to the caller.
    """

    @property
    def rows(self) -> list[NDArray[np.float32]]:
        """For each id site given to `pull`: rows of shape `ids.shape + (dim,)`."""

    @property
    def dense(self) -> NDArray[np.float32]: ...
    @property
    def state(self) -> NDArray[np.float32]: ...
    @property
    def version(self) -> int:
        """Updates that replica 0 had applied."""

@final
class PsClient:
    """Reads and updates a model spread over ps replicas.

    `pull` and `push` may run at the same time from two threads: they use separate connections.
    """

    @staticmethod
    def connect(
        addresses: Sequence[str],
        token: bytes,
        worker_id: int,
        timeout_seconds: float,
        connect_seconds: float | None = None,
        *,
        whole_job: bool = True,
        tls: tuple[PathLike[str], PathLike[str], PathLike[str]] | None = None,
        unix_sockets: bool = True,
        is_copy: bool = False,
        layout: int = 0,
    ) -> PsClient:
        """Reach the replicas of a job.

        Args:
            addresses: `host:port` of each replica, by number.
            token: The job's token.
            worker_id: Names this client in the logs of the replicas.
            timeout_seconds: How long any call waits for a replica that does not answer.
            connect_seconds: How long the first connections may take; default: as long. A replica
                that moves meanwhile cannot be followed: ask for the addresses again.
            whole_job: The addresses are those of all replicas: another one at the place of one
                (a port is used again) is refused, and waited for until `set_address` says where
                the right one is. False for some of the replicas, whichever.
            tls: PEM files of the authority, the certificate and the key, as in `PsServer`.
            unix_sockets: Go on by the Unix socket of a replica that is on this host.
            is_copy: A worker with a copy of the parameters is at the address.
            layout: Counts the moves to other numbers of replicas; that of these.

        Raises:
            AuthenticationError: A replica refuses the token or the certificate, or its own is not
                good; names the address.
            UnavailableError: A replica cannot be reached; names the address.
        """

    @staticmethod
    def in_process(store: Store) -> PsClient:
        """The same client without sockets."""

    def declare(
        self,
        model: str,
        dense: NDArray[np.float32],
        state: NDArray[np.float32],
        given: Sequence[tuple[int, NDArray[np.float32]]] = ...,
    ) -> None:
        """Tell the replicas what the model is (a `ModelDescription` as JSON).

        The first to declare gives the dense and state values; later ones must declare an equal
        model and their values are not used.

        Args:
            model: Equal in every worker.
            dense: The flat dense vector.
            state: The flat state vector.
            given: The tables with `given_rows` and their rows, shape (input_dim, dim). A replica
                that has no model yet gets its part of them first.

        Raises:
            ModelMismatchError: Tables, dims, variables or optimizers differ; says which and how.
        """

    def begin_task(self, task_id: int, lease: int) -> int:
        """Fence off older leases of a task on every replica; return the minibatch to start at.

        That is the lowest number of minibatches that any replica has applied of the task.

        Raises:
            StaleLeaseError: A newer lease has begun.
        """

    def settle_task(self, task_id: int, lease: int) -> None:
        """Have all replicas hear of all minibatches of a lease that were pushed.

        A replica without a key of a minibatch may not have heard of it. Called before the task is
        reported as done.

        Raises:
            StaleLeaseError: A newer lease has begun.
            GapError: A replica has lost minibatches of the task.
        """

    def end_task(self, task_id: int, lease: int) -> None:
        """Say that nothing of a lease is under way: nobody waits for it any more."""

    def pull(
        self,
        sites: Sequence[tuple[int, NDArray[np.int64]]],
        training: bool,
        dense: bool = True,
        *,
        step: tuple[int, int, int] | None = None,
        vectors_of: Pulled | None = None,
    ) -> Pulled:
        """Fetch the rows for (table, ids) of each site, and the dense and state vectors.

        In training missing rows are created. Otherwise nothing is created, and an id that was
        never trained reads as the centre of its table's initializer. With `dense` False both
        vectors are empty; with `vectors_of` they are those of an earlier pull, from which
        staleness then counts.

        `step` is (task id, lease, index) of a minibatch whose gradient will be pushed. With
        bounded staleness the pull waits until that gradient cannot come too late; `push`, `skip`
        or `end_task` must follow.

        Raises:
            MemoryLimitError: New rows would go beyond `Store.set_memory_limit`.
            UnknownTableError: The model has no table of that number.
            UnavailableError: A replica could not be reached within the deadline.
        """

    def push(
        self,
        pulled: Pulled,
        row_grads: Sequence[NDArray[np.float32]],
        dense_grad: NDArray[np.float32],
        state_delta: NDArray[np.float32],
        learning_rate: float,
        task_id: int,
        lease: int,
        index: int,
        num_records: int,
    ) -> tuple[int, int]:
        """Apply one minibatch's gradients exactly once; return (model version, staleness).

        Gradients of equal ids are summed first. Replicas that have applied minibatch `index` of
        the task already leave it out. Retried after a lost connection, until the deadline.

        Raises:
            StaleLeaseError: The lease has been given to somebody else.
            StaleParametersError: The parameters are older than the replicas' synchrony allows;
                nothing has changed, the minibatch may be pulled and computed again.
            UnavailableError: A replica could not be reached within the deadline.
        """

    def with_sites(self, pulled: Pulled, sites: Sequence[tuple[int, NDArray[np.int64]]]) -> Pulled:
        """Return a pull of other ids as far as a push needs it: its rows are zeros.

        Args:
            pulled: A pull; versions and vectors are taken of it.
            sites: (table, ids) of each site of which there will be gradients.

        Raises:
            UnknownTableError: The model has no table of that number.
        """

    def pull_several(
        self,
        sites: Sequence[tuple[int, NDArray[np.int64]]],
        num_minibatches: int,
        *,
        step: tuple[int, int, int] | None = None,
        vectors_of: Pulled | None = None,
    ) -> list[Pulled]:
        """Fetch what several minibatches need, with one frame to each replica, for training.

        An id that several of them have is fetched once. All have the same two vectors.

        Args:
            sites: (table, ids) of each site of the first minibatch, then of the second, and so on.
            num_minibatches: How many there are; each has as many sites.
            step: The first minibatch, as in `pull`.
            vectors_of: As in `pull`.

        Raises:
            MemoryLimitError: New rows would go beyond `Store.set_memory_limit`.
            UnknownTableError: The model has no table of that number.
        """

    def push_several(
        self,
        steps: Sequence[
            tuple[
                Pulled,
                Sequence[NDArray[np.float32]],
                NDArray[np.float32],
                NDArray[np.float32],
                int,
            ]
        ],
        learning_rate: float,
        task_id: int,
        lease: int,
        index: int,
    ) -> tuple[int, int]:
        """Apply the sum of the gradients of minibatches that follow each other, as one update.

        Exactly once, and as a whole. Each gradient is clipped by itself if the model says so; a
        change of state is merged by the rule of its variable.

        Args:
            steps: Of each minibatch its pull, the gradients of rows, that of the dense vector, the
                change of the state, and how many records it has.
            learning_rate: That of the update.
            task_id: The task of all of them.
            lease: Its lease.
            index: The number of the first minibatch.

        Returns:
            The model version, and the staleness of the oldest of the pulls.

        Raises:
            GapError: A replica lacks minibatches before these, or has only some of them.
            ValueError: The replicas bound staleness or make rounds.
            StaleLeaseError: As `push`, and so are all others.
        """

    def push_each(
        self,
        steps: Sequence[
            tuple[
                Pulled,
                Sequence[NDArray[np.float32]],
                NDArray[np.float32],
                NDArray[np.float32],
                int,
            ]
        ],
        learning_rates: Sequence[float],
        task_id: int,
        lease: int,
        index: int,
    ) -> list[tuple[int, int]]:
        """Apply the gradients of minibatches that follow each other, each as an update of its own.

        There is one frame to each replica. Each gradient is applied exactly once, in their order.

        Args:
            steps: As in `push_several`.
            learning_rates: Of each minibatch.
            task_id: The task of the minibatches.
            lease: Its lease.
            index: The number of the first one.

        Returns:
            The model version and the staleness of each.

        Raises:
            StaleLeaseError: As `push`, and so are all others; the minibatches before the one that
                was refused are applied.
        """

    def push_pull(
        self,
        pulled: Pulled,
        row_grads: Sequence[NDArray[np.float32]],
        dense_grad: NDArray[np.float32],
        state_delta: NDArray[np.float32],
        learning_rate: float,
        task_id: int,
        lease: int,
        index: int,
        num_records: int,
        *,
        sites: Sequence[tuple[int, NDArray[np.int64]]],
        step: tuple[int, int, int],
    ) -> tuple[int, int, Pulled | None]:
        """Push, then pull for the next step, in fewer round trips than one after the other.

        For those who may not pull before they have pushed. `sites` and `step` are those of a
        training `pull`, whose result comes third; None if it would have to wait for others, or
        was refused: `pull` then waits, or says why.

        Raises:
            StaleLeaseError: As `push`, and so are all others; then nothing is pulled.
        """

    def skip(self, task_id: int, lease: int, index: int) -> None:
        """Count minibatch `index` as dealt with, without an update (`--on_nan=skip`)."""

    def scan(self, table: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield the trained rows of a table in chunks of (keys (n,), rows (n, dim))."""

    def audit(self, first: int = 0) -> list[NDArray[np.int64]]:
        """For each replica: task id, minibatches applied, records as pushed; shape (tasks, 3).

        Replicas forget all tasks before `first`, and refuse what comes of them.
        """

    def stats(self) -> str:
        """Counters of every replica, as a JSON list: rows, bytes, version, staleness."""

    def checkpoint(self, directory: str) -> list[str]:
        """Have every replica write its files into `directory`; return their manifest entries."""

    def expire(self, now_seconds: int) -> str:
        """Have every replica remove the rows that have come to their end.

        Args:
            now_seconds: Seconds since 1970, noted beside the version for expiry by days.

        Returns:
            JSON: for each replica a list of `{"rows": n, "candidates": n}` by table.
        """

    def export(self, request: str) -> list[str]:
        """Have every replica write its part of the tables as Parquet, all at the same time.

        Args:
            request: JSON with `directory`, and if wanted `threshold` and `since_version`.

        Returns:
            What each replica wrote, as JSON.

        Raises:
            CheckpointError: A file cannot be written; says which and why.
            ValueError: The request cannot be.
        """

    def name_keys(self, sites: Sequence[tuple[int, NDArray[np.int64], Sequence[str]]]) -> None:
        """Have the replicas know the strings that ids were made of, in tables with `keep_names`.

        To be called before the push of each minibatch, with its (table, ids, strings); what they
        have already is not sent again. Without sites, what was sent the last time is confirmed.

        Raises:
            MemoryLimitError: There is no memory for them.
            StoreError: The table keeps no names.
        """

    def set_addresses(self, layout: int, addresses: Sequence[str]) -> None:
        """Reach all replicas where they are now; "" is one that is not there.

        Those of a later layout take the place of those that are known, perhaps another number.
        Those of an earlier one change nothing.
        """

    def move_step(self, replica: int, step: str) -> str:
        """Have one replica do a step of a move to another number of replicas; both as JSON.

        See `docs/designs/resharding.md`.
        """

    def set_address(self, replica: int, address: str) -> None:
        """Reach a relaunched replica at its new address."""

# --- ring of workers (crate edl-ring) ------------------------------------------------------------

@final
class RingListener:
    """Where a rank is found by the others; one serves ring after ring, one ring at a time."""

    def __new__(
        cls,
        host: str,
        port: int,
        token: bytes,
        *,
        tls: tuple[PathLike[str], PathLike[str], PathLike[str]] | None = None,
    ) -> RingListener:
        """Listen.

        Args:
            host: Address to listen at.
            port: 0 for one that the system chooses.
            token: The job's. Only who knows it may connect.
            tls: Files of authority, certificate and key, to speak TLS where TCP is spoken.

        Raises:
            LaunchError: The port is taken.
            ValueError: The token is empty; a file of `tls` cannot be read.
        """

    @property
    def address(self) -> str:
        """`host:port`, with the port that the system chose."""

@final
class Ring:
    """The ranks of one world, connected. Every call releases the GIL while it waits."""

    @staticmethod
    def form(
        listener: RingListener,
        world_id: int,
        rank: int,
        members: Sequence[str],
        *,
        timeout_seconds: float,
        silence_seconds: float = 5.0,
        unix_sockets: bool = True,
        shared_memory: bool = True,
    ) -> Ring:
        """Connect with the other ranks; returns when all have joined.

        Args:
            listener: This rank's own. What is left of rings before `world_id` is dropped.
            world_id: Number of the rendezvous; it grows.
            rank: Which of the members this process is.
            members: Address of each rank's listener, the same on all ranks.
            timeout_seconds: All are reached within this time, and have joined within as much again.
            silence_seconds: A neighbour that gives no sign of life for so long is given up.
            unix_sockets: Use Unix sockets between ranks on one host.
            shared_memory: Reduce through shared memory if all ranks are on one host.

        Raises:
            RingError: A rank did not join, or is none of this job's; names it.
            ValueError: `rank` is not among the members.
        """

    @property
    def transport(self) -> str:
        """What numbers go through: `shared memory`, `unix`, `tls`, `tcp`, or `nothing`."""

    def all_reduce(
        self,
        gradients: Sequence[NDArray[np.float32]],
        out: Sequence[NDArray[np.float32]],
        weight: int,
        *,
        timeout_seconds: float,
        mean: bool = True,
        wire_dtype: str = "float32",
    ) -> int:
        """Write the mean of all ranks' gradients, weighted by samples, into `out`.

        All ranks get the same bits. All call it in the same order, with as many numbers and the
        same settings.

        Args:
            gradients: Arrays that are reduced as one vector. They are read only, also when it
                fails: the reduction can be done again in a smaller ring.
            out: Arrays of the same sizes; they share no memory with `gradients`. Of no use when it
                fails.
            weight: How many samples the gradients of this rank are of. With 0 they do not count.
            timeout_seconds: It is over within this time.
            mean: Divide by the weight of all; else `out` has the weighted sum.
            wire_dtype: `bfloat16` halves what large vectors send over sockets.

        Returns:
            The weight of all ranks. If it is 0, `out` is 0.

        Raises:
            RingError: A rank was lost, silent, late or sent what cannot be used. `rank` names it.
                The ring is of no more use.
            ValueError: `out` does not fit, or shares memory; the ring can still be used.
        """

    def gather(self, data: bytes, *, timeout_seconds: float) -> list[bytes]:
        """Return what all ranks say, by rank. Waits for all.

        Args:
            data: What this rank says; all say as many bytes, 32 KB at most.
            timeout_seconds: It is over within this time.

        Raises:
            RingError: A rank was lost, silent, late or said another number of bytes.
            ValueError: It is too much; the ring can still be used.
        """

    def give(self, values: NDArray[np.uint8], *, timeout_seconds: float) -> None:
        """Give bytes to the others, on rank 0. They call `take` or `pass_on` for as many.

        Raises:
            RingError: A rank was lost, silent or late, or expects another number of bytes.
            ValueError: This is not rank 0; the ring can still be used.
        """

    def take(self, out: NDArray[np.uint8], *, timeout_seconds: float) -> None:
        """Write what rank 0 gives into `out`, which is as long; of no use when it fails.

        Raises:
            RingError, ValueError: As of `give`.
        """

    def pass_on(self, num_bytes: int, *, timeout_seconds: float) -> None:
        """Hand so many bytes of rank 0 on, and keep none.

        Raises:
            RingError, ValueError: As of `give`.
        """

    def close(self) -> None:
        """Leave the ring in peace. The others miss this rank when they reduce next."""

# --- record files (crate edl-recordio) -----------------------------------------------------------
# Every error is a DataError that names the file and, where there is one, the offset.

@final
class BlockInfo:
    """What the header of a RecordIO block says."""

    @property
    def offset(self) -> int: ...
    @property
    def first_record(self) -> int: ...
    @property
    def num_records(self) -> int: ...
    @property
    def codec(self) -> str: ...
    @property
    def stored_bytes(self) -> int: ...
    @property
    def raw_bytes(self) -> int: ...

@final
class RecordReader:
    """A RecordIO file; any number of threads may read from it.

    Raises:
        DataError: It is missing, of another format, damaged, or its tail is torn. With
            `allow_torn` the whole records before a torn tail can be read.
    """

    def __new__(cls, path: str | PathLike[str], allow_torn: bool = False) -> RecordReader: ...
    @property
    def num_records(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def index_state(self) -> str:
        """`stored`, or `rebuilt` if the last writer died before it closed the file."""

    @property
    def torn(self) -> tuple[int, str] | None:
        """Offset and description of the torn tail, if there is one."""

    def blocks(self) -> list[BlockInfo]: ...
    def read(self, start: int, end: int, max_bytes: int | None = None) -> list[bytes]:
        """Return records `[start, end)`; fewer, but at least one, once `max_bytes` are reached."""

    def verify(self) -> None:
        """Read and check every block."""

@final
class RecordBlocks:
    """Records in compressed blocks, for `RecordWriter.write_blocks`."""

    @property
    def num_records(self) -> int: ...

@final
class RecordWriter:
    """Writes a RecordIO file, from one thread.

    A new file appears under its name when it is closed. With `append` records are added to the
    file under its name, which is created if it is missing; no byte that is there changes. Left
    by an exception, or dropped without `close`, the writer takes back what it wrote since it was
    opened or flushed.
    """

    def __new__(
        cls,
        path: str | PathLike[str],
        codec: str = "none",
        append: bool = False,
        block_bytes: int | None = None,
    ) -> RecordWriter: ...
    @property
    def num_records(self) -> int: ...
    def write(self, record: bytes) -> None: ...
    def write_many(self, records: Iterable[bytes]) -> None: ...
    def write_blocks(self, blocks: RecordBlocks) -> None:
        """End the open block, and add blocks that `pack_examples` made."""

    def flush(self) -> None:
        """Write all records so far; when appending, they survive a crash from here on."""

    def close(self) -> None: ...
    def discard(self) -> None: ...
    def __enter__(self) -> RecordWriter: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

@final
class TFRecordReader:
    """A TFRecord file, with an index that is kept beside it as `FILE.idx`; for any threads."""

    def __new__(cls, path: str | PathLike[str]) -> TFRecordReader: ...
    @property
    def num_records(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def index_state(self) -> str:
        """`loaded` from the file beside it, `written` there just now, or `in memory`.

        `passed over`: in memory, for the file beside it belongs to another user.
        """

    def read(self, start: int, end: int, max_bytes: int | None = None) -> list[bytes]:
        """Return records `[start, end)`; fewer, but at least one, once `max_bytes` are reached."""

@final
class TFRecordWriter:
    """Writes a TFRecord file, from one thread; it appears when it is closed."""

    def __new__(cls, path: str | PathLike[str]) -> TFRecordWriter: ...
    @property
    def num_records(self) -> int: ...
    def write(self, record: bytes) -> None: ...
    def write_many(self, records: Iterable[bytes]) -> None: ...
    def close(self) -> None: ...
    def discard(self) -> None: ...
    def __enter__(self) -> TFRecordWriter: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None: ...

@final
class LineReader:
    """A text file by lines, without their ends; for any threads.

    A header line is no record; nor are blank lines, or line feeds between double quotes, if told
    so. Files of 16 MiB or more get an index beside them as `FILE.idx`.
    """

    def __new__(
        cls,
        path: str | PathLike[str],
        skip_header: bool = False,
        skip_blank: bool = False,
        quoted_newlines: bool = False,
    ) -> LineReader: ...
    @property
    def num_records(self) -> int: ...
    @property
    def file_bytes(self) -> int: ...
    @property
    def index_state(self) -> str:
        """`loaded` from the file beside it, `written` there just now, or `in memory`.

        `passed over`: in memory, for the file beside it belongs to another user.
        """

    @property
    def header(self) -> bytes | None: ...
    def line_of(self, record: int) -> int:
        """Return the number of the line in which a record begins, from 1; reads up to there."""

    def read(self, start: int, end: int, max_bytes: int | None = None) -> list[bytes]:
        """Return records `[start, end)`; fewer, but at least one, once `max_bytes` are reached."""

@final
class CsvFields:
    """The fields of some lines of CSV, by column.

    Raises:
        ValueError: A line does not parse: (its place among `lines`, number of the field or None,
            what is wrong).
    """

    def __new__(cls, lines: Sequence[bytes], delimiter: int, num_fields: int) -> CsvFields: ...
    def text(self, number: int) -> tuple[bytes, NDArray[np.int64]]:
        """Return the values of a field, joined, and their `n + 1` offsets."""

    def kind(self, number: int, missing: Sequence[bytes]) -> str | None:
        """Return the narrowest of int64, large, float and bytes that holds all values of a field.

        `large` are whole numbers of which int64 does not hold all, such as ids. None if all are
        among `missing`, as words that stand for no value.
        """

    def numbers(
        self, number: int, kind: str, missing: Sequence[bytes]
    ) -> tuple[NDArray[np.int64] | NDArray[np.float64], NDArray[np.bool]]:
        """Return the values of a field as numbers, and whether there is one.

        Args:
            number: Of the field.
            kind: int64, float, or float32: a real number that 32 bits hold, too.
            missing: Words that stand for no value.

        Raises:
            ValueError: One is no number; as of the class.
        """

def check_csv(
    lines: Sequence[bytes],
    delimiter: int,
    num_fields: int,
    numbers: Sequence[str | None],
    missing: Sequence[bytes],
    required: Sequence[int],
) -> None:
    """Check lines of CSV, of which some fields are numbers: int64, float or float32.

    Those whose numbers are among `required` may not be missing.

    Raises:
        ValueError: As of `CsvFields`.
    """

def json_columns(
    objects: Sequence[bytes], names: Sequence[str], kinds: Sequence[str]
) -> list[NDArray[np.int64] | NDArray[np.float64] | list[str]] | None:
    """Return columns of objects of JSON: arrays of int64 or float64, lists of text.

    Args:
        objects: One a record.
        names: Of the columns.
        kinds: Of each: int64, float or bytes.

    Returns:
        None: an object is none, or has a value that is not as its column usually has it; it may
        be right all the same.
    """

def parse_libsvm(
    lines: Sequence[bytes],
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return the labels of lines of LIBSVM, where the pairs of each end, indices and values.

    Raises:
        ValueError: As of `CsvFields`.
    """

def check_parquet_pages(chunk: bytes, num_values: int) -> None:
    """Check that the pages of a column of a row group have so many values.

    Args:
        chunk: The bytes of the column in the row group.
        num_values: How many the footer says.

    Raises:
        ValueError: They have another number, or a page is cut or damaged; says what.
    """

def parquet_footer(footer: bytes) -> list[tuple[str, bool]]:
    """Return the path of each column of a Parquet file, and whether it may have nulls.

    Args:
        footer: The file's metadata, as Thrift has it.

    Raises:
        ValueError: It is damaged, or something is encrypted; says what.
    """

def repair_recordio(path: str | PathLike[str], dry_run: bool = False) -> tuple[int, int, bool]:
    """Cut off a RecordIO file's torn tail and give it an index, if it lacks one.

    Returns:
        Records that it has then, bytes cut off, and whether anything needed to be done.

    Raises:
        DataError: Records in the middle are damaged, so that cutting would lose whole ones.
    """

def repair_tfrecord(path: str | PathLike[str], dry_run: bool = False) -> tuple[int, int, bool]:
    """Cut off a TFRecord file's torn tail; returns what `repair_recordio` does."""

def encode_examples(
    columns: Sequence[
        tuple[
            str,
            NDArray[np.int64] | NDArray[np.float32] | tuple[bytes, NDArray[np.int64]],
            NDArray[np.int64],
        ]
    ],
    num_records: int,
) -> list[bytes]:
    """Encode columns as `tf.train.Example` messages.

    Args:
        columns: Name; values of all records, strings of bytes joined and with `n + 1` offsets;
            and row splits: record `i` has the values `row_splits[i]` to `row_splits[i + 1]`.
        num_records: How many messages to make.

    Raises:
        ValueError: Splits or offsets do not fit; names the column.
    """

def pack_examples(
    columns: Sequence[
        tuple[
            str,
            NDArray[np.int64] | NDArray[np.float32] | tuple[bytes, NDArray[np.int64]],
            NDArray[np.int64],
        ]
    ],
    num_records: int,
    codec: str,
) -> RecordBlocks:
    """Encode columns as `encode_examples` does, into blocks for `RecordWriter.write_blocks`.

    Raises:
        ValueError: Splits or offsets do not fit, or a record is too large; there is no such codec.
    """

def decode_examples(
    records: Sequence[bytes],
    wanted: Sequence[
        tuple[
            str,
            str,
            int | None,
            NDArray[np.int64] | NDArray[np.float32] | tuple[bytes, NDArray[np.int64]] | None,
        ]
    ]
    | None = None,
) -> list[
    tuple[
        str,
        NDArray[np.int64] | NDArray[np.float32] | tuple[bytes, NDArray[np.int64]],
        NDArray[np.int64],
    ]
]:
    """Decode `tf.train.Example` messages to columns, as `encode_examples` takes them.

    Args:
        records: The messages.
        wanted: Of each feature its name, its kind (int64, float or bytes), how many values a record
            has (None: any number), and the values of a record that lacks it (None: it must be
            there, if its number of values is given). Without it all features are decoded, in the
            order in which they are found.

    Raises:
        ValueError: A record is not such a message, is an unusual one (a feature twice, fields of
            another version), or its values are not those that are wanted; names it by its place.
    """

def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) checksum."""

def seal_manifest(manifest: str) -> str:
    """Return a manifest of a checkpoint or an export with a checksum of itself.

    Args:
        manifest: JSON as of `json.dumps(..., indent=1)`.

    Raises:
        ValueError: It is not.
    """

def is_sealed_manifest(manifest: bytes) -> bool:
    """Return whether a manifest has a checksum of itself; one of earlier versions has none.

    Raises:
        ValueError: It has one that does not fit: it was changed or is damaged.
    """

def keys_of_strings(strings: Sequence[str | bytes]) -> NDArray[np.int64]:
    """Return the ids of strings: FarmHash's `Fingerprint64` of their UTF-8, modulo 2**63 - 1.

    It is what `tf.strings.to_hash_bucket_fast(strings, 2**63 - 1)` gives.
    """
