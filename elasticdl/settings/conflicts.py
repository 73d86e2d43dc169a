"""Checks of settings in different sections that do not go together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from elasticdl.job import Strategy
from elasticdl.locations import Location

WRITTEN_WHOLE = ("output", "export_tables")


def check_destinations(places: Mapping[str, Location | None]) -> None:
    """Refuse a destination inside the folder of another that is written as a whole.

    Such a folder appears by a rename, when it is complete. Files that are in it by then would
    prevent the rename, or be lost.

    Args:
        places: The destination of each flag.

    Raises:
        ValueError: Two destinations overlap; names both flags.
    """
    given = {flag: _parts(place) for flag, place in places.items() if place is not None}
    for whole in WRITTEN_WHOLE:
        outer = given.get(whole)
        for flag, inner in given.items():
            if outer is None or flag == whole or inner[: len(outer)] != outer:
                continue
            raise ValueError(
                f"--{flag}={places[flag]} is in the folder of --{whole}={places[whole]}, which is "
                "written as a whole when training has ended: expected folders that are apart"
            )


def _parts(place: Location) -> tuple[str, ...]:
    if isinstance(place, Path):
        # Two spellings of one folder, such as a/../b and b, must compare as equal.
        return Path(os.path.abspath(place)).parts
    return tuple(str(place).rstrip("/").split("/"))


def check_push_steps(
    push_steps: int, strategy: Strategy, use_async: bool, max_staleness: int | None
) -> None:
    """Refuse to add up gradients before a push if each must be pushed alone.

    Raises:
        ValueError: The settings do not fit; says what was expected.
    """
    if push_steps == 1:
        return
    flag = f"--push_steps={push_steps}"
    if strategy is not Strategy.PARAMETER_SERVER:
        raise ValueError(
            f"{flag} saves pushes to ps replicas of gradients that need not wait for each other: "
            f"expected --distribution_strategy={Strategy.PARAMETER_SERVER}, found {strategy}"
        )
    if not use_async:
        raise ValueError(
            f"{flag} does not go with --use_async=false, whose rounds average one minibatch of "
            "each worker: expected a larger --minibatch_size, or not this flag"
        )
    if max_staleness is not None:
        raise ValueError(
            f"{flag} does not go with --max_staleness={max_staleness}: a gradient that waits in "
            "the worker is late by the updates that others make meanwhile; expected one of them"
        )


def check_model_servers(number: int, strategy: Strategy, refused: Mapping[str, bool]) -> None:
    """Refuse model servers if they cannot get parameters, or if this is not supported yet.

    Args:
        number: The number of model servers.
        strategy: The job's strategy.
        refused: Flags that do not go with model servers, and whether each is given.

    Raises:
        ValueError: The settings do not fit; says what was expected.
    """
    flag = f"--num_model_servers={number}"
    if strategy not in (Strategy.PARAMETER_SERVER, Strategy.HYBRID):
        raise ValueError(
            f"{flag}: a model server takes rows from ps replicas: expected "
            f"--distribution_strategy={Strategy.PARAMETER_SERVER} or {Strategy.HYBRID}, found "
            f"{strategy}; without the flag each worker computes what is in elasticdl.layers.Remote "
            "itself"
        )
    given = [name for name, is_given in refused.items() if is_given]
    if given:
        raise ValueError(
            f"{flag} does not go with {given[0]} so far: expected one of them; without the first "
            "each worker computes what is in elasticdl.layers.Remote itself"
        )


def check_deterministic(
    strategy: Strategy,
    global_batch_size: int | None,
    minibatch_size: int,
    num_minibatches_per_task: int,
) -> None:
    """Refuse settings with which an update cannot depend on the data alone.

    Raises:
        ValueError: The settings do not fit; says what was expected.
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
