"""Runs a user's script as the main program of a worker process.

The script has the main thread. The worker leases tasks and makes updates in threads of its own,
once the script asks for its first minibatch.
"""

from __future__ import annotations

import contextlib
import logging
import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from elasticdl.backends.base import Float32
from elasticdl.errors import ElasticdlError, ModelError, UnavailableError, place_of
from elasticdl.packages.own_loops.asking import AskingTrainer
from elasticdl.packages.own_loops.controller import Controller, serving
from elasticdl.packages.own_loops.handover import Handover
from elasticdl.runtime import process
from elasticdl.runtime.ending import DaemonThread
from elasticdl.worker.cores import threads_of
from elasticdl.worker.loop import Worker
from elasticdl.worker.worker_process import Watching, WorkerProcess

log = logging.getLogger(__name__)


class ScriptJob:
    """The job that the controller of a script uses (`controller.WorkerServices`)."""

    def __init__(
        self,
        worker_process: WorkerProcess,
        watching: Watching,
        leave: Callable[[], None],
    ) -> None:
        """Do not start a worker yet.

        Args:
            worker_process: Makes a worker, once the script has a model.
            watching: A context in which a worker runs.
            leave: Called when the worker has run; ends the process if it was asked to end.
        """
        config = worker_process.config
        self.worker_id = worker_process.worker_id
        self.is_shards_only = not config.has_worlds
        self.seed = config.training.seed
        self.num_threads = threads_of(config).count
        self.device = worker_process.device or "cpu"
        self.failure: BaseException | None = None
        self._process = worker_process
        self._watching = watching
        self._leave = leave

    def begin(self, trainer: AskingTrainer, handover: Handover) -> None:
        """Have a worker run in a thread."""
        worker = self._process.of_trainer(trainer, trainer.notes)
        DaemonThread(self._run, "worker", (worker, handover)).start()

    def _run(self, worker: Worker, handover: Handover) -> None:
        try:
            with self._watching(worker):
                worker.run()
        # Any error must reach the script's thread, which waits for the next minibatch.
        except BaseException as error:
            self.failure = error
        handover.end(self.failure)

    def place(self) -> tuple[int, int] | None:
        """Return rank and world size, as they are now; None while there is no world."""
        ring = self._process.exchange.ring
        return None if ring is None else ring.member.place()

    def finish(self) -> tuple[Float32, Float32]:
        """Return the final parameters and state, and leave the ring.

        Raises:
            SystemExit: This process was asked to end, or came too late to get any parameters.
            UnavailableError: The ring of this worker has failed.
        """
        # The worker leaves also after an error: the others must not wait for it.
        with contextlib.ExitStack() as last:
            last.callback(self._leave)
            ring = self._process.exchange.ring
            if ring is None:
                return np.zeros(0, np.float32), np.zeros(0, np.float32)
            try:
                final = ring.pull()
            except UnavailableError:
                if ring.member.error is not None:
                    raise
                log.info("the job has finished before this worker had parameters: it ends")
                raise SystemExit(0) from None
        return final.dense, final.state


def run_program(
    worker_process: WorkerProcess, watching: Watching, leave: Callable[[], None]
) -> None:
    """Run the script of a job; it is a `Program`.

    Raises:
        ModelError: The script raised an error, or ended before it had all minibatches.
        SystemExit: This process was asked to end, or its worker has failed.
    """
    model = worker_process.config.model
    assert model.script is not None, "only a job with a script has this program"
    job = ScriptJob(worker_process, watching, leave)
    run_script(model.script, model.script_arguments, job)


def run_script(script: Path, arguments: tuple[str, ...], job: ScriptJob) -> None:
    """Run a script to its end.

    Raises:
        ModelError: The script raised an error, or ended before it had all minibatches.
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
        # The worker's own error came back through the script. It ends the process as it would
        # without a script.
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
