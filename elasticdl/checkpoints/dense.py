"""Finds the dense parameters of a checkpoint, and begins a new job of any kind with them.

A checkpoint of a hybrid job has its dense parameters in a folder of their own. They come from one
worker, the rows around them come from the ps replicas, and each part is restored by itself. The
folder has the form of a hand-over, which is a whole store. In other checkpoints both are in the
same files. A new job can begin with either form; it reads the parts that it needs.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from elasticdl._core import Progress, Store
from elasticdl.checkpoints.remote import fetch, restore
from elasticdl.locations import Location, is_remote, reaching

DENSE = "dense"


def is_apart(checkpoint: Location) -> bool:
    """Return whether a checkpoint has its dense parameters in a folder of their own."""
    with reaching(checkpoint):
        return (checkpoint / DENSE).is_dir()


def begin_from(
    checkpoint: Location,
    replica: int = 0,
    num_replicas: int = 1,
    *,
    has_rows: bool = True,
    has_dense: bool = True,
    progress: Progress | None = None,
    scratch: Path | None = None,
    disk: tuple[str, int] | None = None,
) -> Store:
    """Return the store with which a replica of a new job begins.

    Args:
        checkpoint: The folder of a version, of a hybrid job or of another.
        replica: The number of the replica.
        num_replicas: The number of replicas.
        has_rows: Whether the replica holds rows of tables.
        has_dense: Whether the replica holds dense parameters and state.
        progress: Counts what is read.
        scratch: The folder for files that are fetched from URLs.
        disk: As for `Store`.

    Raises:
        CheckpointError: Files are missing, torn or inconsistent, or cannot be reached.
    """
    apart = is_apart(checkpoint)
    # Everything is in one folder, which is read in one pass.
    if has_rows and has_dense and not apart:
        return restore(checkpoint, replica, num_replicas, False, progress, scratch, disk)
    dense = checkpoint / DENSE if apart else checkpoint

    with ExitStack() as stack:

        def here(part: Location, is_of_rows: bool) -> str:
            """Return the folder of a part, here for as long as it is read."""
            if not is_remote(part):
                return str(part)
            if scratch is not None:
                scratch.mkdir(parents=True, exist_ok=True)
            into = tempfile.TemporaryDirectory(prefix="elasticdl-restore-", dir=scratch)
            needed = {"are_rows_needed": is_of_rows, "are_vectors_needed": not is_of_rows}
            fetched = Path(stack.enter_context(into))
            return str(fetch(part, replica, num_replicas, fetched, progress, **needed))

        rows = here(checkpoint, True) if has_rows else None
        vectors = here(dense, False) if has_dense else None
        return Store.restore_parts(rows, vectors, replica, num_replicas, progress, disk)
