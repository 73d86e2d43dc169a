"""Where a checkpoint has its dense parameters, and how a new job of any kind begins with it.

In a checkpoint of a hybrid job the dense parameters are in a folder of their own within it: they
come from one worker, the rows around them from the ps replicas, and each part is restored by
itself. The folder has the form of a hand-over, which is a whole store's. In all other checkpoints
both are in the same files. A new job begins with either form, and takes the parts that it needs.
"""

from __future__ import annotations

from pathlib import Path

from elasticdl._core import Progress, Store
from elasticdl.checkpoints.remote import restore
from elasticdl.locations import Location, is_remote, reaching

DENSE = "dense"


def is_apart(checkpoint: Location) -> bool:
    """Whether a checkpoint has its dense parameters in a folder of their own."""
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
) -> Store:
    """Return what a replica of a new job begins with.

    Args:
        checkpoint: The folder of a version, of a hybrid job or of another.
        replica: Number of the replica.
        num_replicas: How many there are.
        has_rows: Whether rows of tables are its own.
        has_dense: Whether dense parameters and state are.
        progress: Counts what is read.
        scratch: For what is fetched from URLs.

    Raises:
        CheckpointError: Files are missing, torn or inconsistent, or cannot be reached.
    """
    apart = is_apart(checkpoint)
    if has_rows and has_dense and not apart:
        return restore(checkpoint, replica, num_replicas, False, progress, scratch)
    assert not is_remote(checkpoint), "jobs that take parts are refused checkpoints behind URLs"
    rows = str(checkpoint) if has_rows else None
    dense = checkpoint / DENSE if apart else checkpoint
    vectors = str(dense) if has_dense else None
    return Store.restore_parts(rows, vectors, replica, num_replicas, progress)
