"""The Rust data plane: parameter store, its wire, and record files.

Numbers cross as NumPy arrays, C-contiguous, and every call that moves bytes releases the GIL.
Errors are those of `elasticdl.errors`.
"""

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

# --- parameter store (crates edl-optim, edl-store, edl-ps) ---------------------------------------

@final
class Store:
    """The part of a model that one ps replica holds; also the whole model, for `Local`."""

    def __new__(cls, replica: int = 0, num_replicas: int = 1) -> Store: ...
    @staticmethod
    def restore(
        checkpoint: str, replica: int = 0, num_replicas: int = 1, keep_watermarks: bool = True
    ) -> Store:
        """Load this replica's part of a checkpoint written by any number of replicas.

        Args:
            checkpoint: A version folder with its `manifest.json`.
            keep_watermarks: False to start a new job from the parameters.

        Raises:
            CheckpointError: Missing, torn (checksum) or inconsistent files; names the file.
        """

    def checkpoint(self, directory: str) -> str:
        """Write this replica's files into `directory` and return its manifest entry as JSON."""

@final
class PsServer:
    """Serves a store on a socket, from threads that never take the GIL."""

    def __new__(cls, store: Store, host: str, port: int, token: bytes) -> PsServer: ...
    @property
    def address(self) -> str:
        """`host:port` with the port that the system chose, if 0 was asked for."""

    def stop(self) -> None: ...

@final
class Pulled:
    """What one pull brought, and what its push needs to know of it."""

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
        addresses: Sequence[str], token: bytes, worker_id: int, timeout_seconds: float
    ) -> PsClient: ...
    @staticmethod
    def in_process(store: Store) -> PsClient:
        """The same client without sockets."""

    def declare(self, model: str, dense: NDArray[np.float32], state: NDArray[np.float32]) -> None:
        """Tell the replicas what the model is (a `ModelDescription` as JSON).

        The first to declare gives the dense and state values; later ones must declare an equal
        model and their values are not used.

        Raises:
            ModelMismatchError: Tables, dims, variables or optimizers differ; says which and how.
        """

    def begin_task(self, task_id: int, lease: int) -> int:
        """Fence off older leases of a task on every replica; return the minibatch to start at.

        That is the lowest number of minibatches that any replica has applied of the task.

        Raises:
            StaleLeaseError: A newer lease has begun.
        """

    def pull(
        self,
        sites: Sequence[tuple[int, NDArray[np.int64]]],
        training: bool,
        dense: bool = True,
    ) -> Pulled:
        """Fetch the rows for (table, ids) of each site, and the dense and state vectors.

        In training missing rows are created. Otherwise nothing is created, and an id that was
        never trained reads as the centre of its table's initializer.
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
            UnavailableError: A replica could not be reached within the deadline.
        """

    def skip(self, task_id: int, lease: int, index: int) -> None:
        """Count minibatch `index` as dealt with, without an update (`--on_nan=skip`)."""

    def scan(self, table: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield the trained rows of a table in chunks of (keys (n,), rows (n, dim))."""

    def audit(self) -> list[list[tuple[int, int, int]]]:
        """For each replica: (task id, minibatches applied, records as pushed) of every task."""

    def stats(self) -> str:
        """Counters of every replica, as a JSON list: rows, bytes, version, staleness."""

    def checkpoint(self, directory: str) -> list[str]:
        """Have every replica write its files into `directory`; return their manifest entries."""

    def set_address(self, replica: int, address: str) -> None:
        """Reach a relaunched replica at its new address."""

# --- record files (crate edl-recordio) -------------------------------------------------------------
