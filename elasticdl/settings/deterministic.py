"""What a deterministic job (`--deterministic`) needs of the other settings."""

from __future__ import annotations

from elasticdl.job import Strategy


def check_deterministic(
    strategy: Strategy,
    global_batch_size: int | None,
    minibatch_size: int,
    num_minibatches_per_task: int,
) -> None:
    """Refuse settings under which an update cannot be a function of the data alone.

    Raises:
        ValueError: Says what was expected.
    """
    if strategy is not Strategy.ALLREDUCE:
        raise ValueError(
            "--deterministic is of training in which all workers make the same updates: expected "
            f"--distribution_strategy={Strategy.ALLREDUCE}, found {strategy}"
        )
    if global_batch_size is None:
        raise ValueError(
            "--deterministic needs --global_batch_size: without it an update has a minibatch of "
            "each worker, so that it depends on how many there are"
        )
    per_task = minibatch_size * num_minibatches_per_task
    if global_batch_size % per_task:
        raise ValueError(
            f"--deterministic makes each update of whole tasks: expected --global_batch_size as a "
            f"multiple of {per_task} (--minibatch_size={minibatch_size} times "
            f"--num_minibatches_per_task={num_minibatches_per_task}), found {global_batch_size}; "
            "a task is what one worker computes of an update, so there had better be one for each "
            "worker"
        )
