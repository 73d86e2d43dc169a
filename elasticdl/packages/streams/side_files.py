"""Writes messages that cannot be read to files beside the job, one for each task that has some.

A task that is read again writes the same file, in any worker. So each message is there once.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path

from elasticdl.data.base import Aside
from elasticdl.errors import CheckpointError, DataError
from elasticdl.job import Shard
from elasticdl.locations import Location, is_remote, reaching


def write(folder: Location, shard: Shard, messages: Sequence[Aside]) -> None:
    """Write the unreadable messages in the range of a task, one line of JSON for each.

    Raises:
        DataError: The file cannot be written.
    """
    topic, _, partition = shard.name.rpartition("-")
    lines = "".join(
        json.dumps(
            {
                "topic": topic,
                "partition": int(partition),
                "offset": message.position,
                "why": message.why,
                "value": base64.b64encode(message.value).decode(),
            }
        )
        + "\n"
        for message in messages
    )
    place = folder / f"{shard.name}-{shard.start}-{shard.end}.jsonl"
    try:
        with reaching(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _replace(place, lines)
    except (OSError, CheckpointError) as error:
        raise DataError(
            f"{shard.name}: {len(messages)} of its messages [{shard.start}, {shard.end}) are not "
            f"readable, and cannot be written to --bad_message_dir: {error}",
            is_certain=False,
        ) from error


def _replace(place: Location, text: str) -> None:
    """Write a file as a whole: a reader finds all of it, or nothing."""
    if is_remote(place):
        place.write_text(text)
        return
    new = Path(f"{place}.{os.getpid()}.new")
    new.write_text(text)
    new.replace(place)
