"""Records the work of this ps replica for requests, when `elasticdl profile` asks for it.

The request is a file in the job's folder, as it is for workers. A replica records from the time
when it sees the file until the file is removed, because only the workers count the requested steps.
The replica writes a file once it records, and workers are asked when all replicas record. Otherwise
a fast worker could make its steps before a replica looks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elasticdl._core import PsServer
from elasticdl.runtime import process

_MOST_REQUESTS = 300_000

log = logging.getLogger(__name__)


def look_of(server: PsServer, job_dir: Path, name: str) -> Callable[[], None]:
    """Return what looks for requests to a ps replica; it is a `MakeProfiler` for these."""
    return PsProfiler(server, job_dir, name).look


class PsProfiler:
    """Looks for requests of profiles, and answers them."""

    def __init__(self, server: PsServer, job_dir: Path, name: str) -> None:
        """Record the requests of a server; `name` is the name of the process."""
        self._server = server
        self._folder = job_dir / process.PROFILE_FOLDER
        self._name = name
        self._id = ""

    def look(self) -> None:
        """Start recording for a new request, and write the records of a request that is over."""
        wanted = self._wanted()
        if wanted == self._id:
            return
        if self._id:
            self._write()
        self._id = wanted
        if wanted:
            self._server.record(_MOST_REQUESTS)
            self._answer(process.PROFILE_RECORDING, "")

    def _wanted(self) -> str:
        try:
            request = json.loads((self._folder / process.PROFILE_REQUEST).read_text())
            return str(request["id"])
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("a request for a profile cannot be read: %s", error)
            return ""

    def _write(self) -> None:
        spans: list[dict[str, Any]] = []
        for asked, connection, minibatch, began, ended in self._server.take_recorded():
            task, index = minibatch or (-1, -1)
            spans.append(
                {
                    "stage": asked,
                    "thread": connection,
                    "thread_name": f"connection {connection}",
                    "began": began,
                    "ended": ended,
                    "task": task,
                    "minibatch": index,
                }
            )
        self._answer("json", json.dumps({"process": self._name, "spans": spans}))

    def _answer(self, ending: str, text: str) -> None:
        path = self._folder / f"{self._id}.{self._name}.{ending}"
        try:
            process.write_whole(path, text)
        except OSError as error:
            log.warning("a profile cannot be written: %s", error)
