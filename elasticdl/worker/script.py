"""Runs a user's script as the main program of a worker process.

The script has the main thread. The worker, which leases tasks and makes updates, has threads of its
own, from the moment when the script asks for its first minibatch.
"""

from __future__ import annotations

import contextlib
import logging
import runpy
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np

from elasticdl.backends.base import Float32, Trainer
from elasticdl.backends.handover import Handover
from elasticdl.config import JobConfig
from elasticdl.controller import Controller, serving
from elasticdl.errors import ElasticdlError, ModelError, UnavailableError, place_of
from elasticdl.runtime import process
from elasticdl.worker.all_reduce import RingExchange
from elasticdl.worker.assemble import threads_of
from elasticdl.worker.loop import Worker

log = logging.getLogger(__name__)


class ScriptJob:
    """The job, as the controller of a script sees it (`elasticdl.controller.Job`)."""

    def __init__(
        self,
        config: JobConfig,
        worker_id: int,
        assemble: Callable[[Trainer], tuple[Worker, RingExchange | None]],
        watching: Callable[[Worker], AbstractContextManager[object]],
        leave: Callable[[], None],
        device: str | None = None,
    ) -> None:
        """Take no part yet.

        Args:
            config: The job's settings.
            worker_id: The id of this process.
            assemble: Makes a worker, and what holds its parameters, if there are any.
            watching: A context in which a worker runs.
            leave: Called when the worker has run; ends the process if that is to leave.
            device: Where the script is to compute; None: on the CPU.
        """
        self.worker_id = worker_id
        self.is_shards_only = not config.has_worlds
        self.seed = config.training.seed
        self.num_threads = threads_of(config).count
        self.device = device or "cpu"
        self.failure: BaseException | None = None
        self._assemble = assemble
        self._watching = watching
        self._leave = leave
        self._exchange: RingExchange | None = None

    def begin(self, trainer: Trainer, handover: Handover) -> None:
        """Have a worker run in a thread."""
        worker, self._exchange = self._assemble(trainer)
        threading.Thread(
            target=self._run, args=(worker, handover), name="worker", daemon=True
        ).start()

    def _run(self, worker: Worker, handover: Handover) -> None:
        try:
            with self._watching(worker):
                worker.run()
        except BaseException as error:
            self.failure = error
        handover.end(self.failure)

    def place(self) -> tuple[int, int] | None:
        """Return rank and world size, as they are now; None while there is no world."""
        return None if self._exchange is None else self._exchange.member.place()

    def finish(self) -> tuple[Float32, Float32]:
        """Return the final parameters and state, and leave the ring.

        Raises:
            SystemExit: This process was asked to end, or came too late to get any parameters.
        """
        with contextlib.ExitStack() as last:
            last.callback(self._leave)
            if self._exchange is None:
                return np.zeros(0, np.float32), np.zeros(0, np.float32)
            try:
                final = self._exchange.pull()
            except UnavailableError:
                log.info("the job has finished before this worker had parameters: it ends")
                raise SystemExit(0) from None
        return final.dense, final.state


def run_script(script: Path, arguments: tuple[str, ...], job: ScriptJob) -> None:
    """Run a script to its end.

    Raises:
        ModelError: It raised, or ended before it had all minibatches.
        SystemExit: This process was asked to end, or its worker has failed.
    """
    controller = Controller(job)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *arguments]
    try:
        with serving(controller):
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code == process.STOPPED_EXIT_CODE:
            raise
        if error.code not in (None, 0):
            raise ModelError(f"{script} has called sys.exit({error.code!r})") from error
    except Exception as error:
        if error is job.failure:
            process.run_to_own_failure(partial(_raise, error))
        if isinstance(error, ElasticdlError):
            raise
        log.error("%s has failed", script, exc_info=error)
        raise ModelError(
            f"{script}: {type(error).__name__}: {error} ({place_of(error)})"
        ) from error
    if not controller.is_over:
        raise ModelError(
            f"{script} has ended before the job: expected a loop over controller.minibatches() "
            "that goes on until there are no more"
        )


def _raise(error: BaseException) -> None:
    raise error
