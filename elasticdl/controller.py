"""Elastic data shards and all-reduce for a user's own training loop, run by `elasticdl run`.

    controller = elasticdl.controller.init()
    optimizer = controller.wrap(model, torch.optim.Adam(model.parameters()))
    for records in controller.minibatches():
        loss = ...
        loss.backward()
        optimizer.step(loss)

The worker of this process (leases, rounds, updates) runs in threads of its own. This module is
where the script's thread meets it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl.backends.base import Float32, Trainer
from elasticdl.backends.handover import Handover, Step
from elasticdl.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from elasticdl.backends.torch.loading import TaskBatches
    from elasticdl.backends.torch.script import ScriptTrainer

__all__ = ["Controller", "Optimizer", "init"]

_of_this_process: list[Controller] = []  # a script is a process's one main program


class Job(Protocol):
    """What a worker process does for the script that it runs.

    Attributes:
        worker_id: Of this process.
        seed, num_threads, device: What the script is to compute with.
    """

    worker_id: int
    seed: int
    num_threads: int
    device: str

    def begin(self, trainer: Trainer, handover: Handover) -> None:
        """Take part in the job, in other threads; steps are asked for at the handover."""
        ...

    def place(self) -> tuple[int, int] | None:
        """Return rank and world size, as they are now; None before there is a world."""
        ...

    def finish(self) -> tuple[Float32, Float32]:
        """After the last step: return the final parameters and state; leave the job."""
        ...


def init() -> Controller:
    """Return the controller of this process; the first thing that a script does.

    PyTorch draws the same random numbers in each worker from here on.

    Raises:
        ConfigError: The script was not started by `elasticdl run`, or PyTorch is missing.
    """
    if not _of_this_process:
        raise ConfigError(
            "elasticdl.controller.init(): expected a script that `elasticdl run` has started, "
            "found a plain Python process: elasticdl run script.py --training_data=..."
        )
    controller = _of_this_process[0]
    controller._prepare()
    return controller


class Controller:
    """A script's part in a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._handover = Handover()
        self._trainer: ScriptTrainer | None = None
        self._batches: TaskBatches | None = None
        self._has_begun = False
        self._step: Step | None = None  # that the script is at
        self.is_over = False
        """Whether the script has had all of its minibatches."""

    def _prepare(self) -> None:
        try:
            from elasticdl.backends.torch.device import open_device
            from elasticdl.backends.torch.threads import prepare
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"elasticdl.controller needs PyTorch, and {error.name!r} is not installed: "
                "pip install 'elasticdl[torch]'"
            ) from error
        open_device(self._job.device)  # refuses one that is not there
        prepare(self._job.seed, self._job.num_threads)

    @property
    def worker_id(self) -> int:
        """The number of this worker; one that replaces a lost worker has a number of its own."""
        return self._job.worker_id

    @property
    def rank(self) -> int:
        """The place of this worker in its world, from 0; it changes when workers come and go.

        Raises:
            ModelError: There is no world before the first minibatch.
        """
        return self._place("rank")[0]

    @property
    def world_size(self) -> int:
        """How many workers reduce together now.

        Raises:
            ModelError: There is no world before the first minibatch.
        """
        return self._place("world_size")[1]

    def _place(self, what: str) -> tuple[int, int]:
        place = self._job.place()
        if place is None:
            raise ModelError(
                f"{what}: expected to be asked for within the loop over minibatches(), found a "
                "worker that is in no world yet"
            )
        return place

    @property
    def device(self) -> str:
        """Where this worker computes, of `--worker_devices`: "cpu", or "cuda:0" and the like."""
        return self._job.device

    def wrap(self, model: Any, optimizer: Any) -> Optimizer:
        """Give the job a model; return what takes the place of its optimizer.

        Args:
            model: A `torch.nn.Module`, float32 on `device`.
            optimizer: Of `torch.optim`, one that the job applies, or a scheduler of
                `torch.optim.lr_scheduler` around one.

        Raises:
            ModelError: One of them cannot be used here; says what and why.
        """
        from elasticdl.backends.torch.device import open_device
        from elasticdl.backends.torch.script import ScriptTrainer

        if self._trainer is not None:
            raise ModelError("wrap(model, optimizer): expected one model, found a second call")
        device = open_device(self._job.device)
        self._trainer = ScriptTrainer(self._handover, model, optimizer, self._job.seed, device)
        return Optimizer(self)

    def batches(self) -> TaskBatches:
        """Return the minibatches as a `batch_sampler` of a `torch.utils.data.DataLoader`.

        Its dataset is asked for records in place of indices: `dataset[record]` returns an example,
        in a process of the loader. Give the loader to `minibatches`.
        """
        from elasticdl.backends.torch.loading import TaskBatches

        if self._batches is None:
            self._batches = TaskBatches()
        return self._batches

    def minibatches(self, loader: Any = None) -> Iterator[Any]:
        """Yield lists of records, until the job has no more for this worker.

        Each has to be answered by `step`. The model has the newest parameters then. A minibatch
        comes once more if the parameters have changed before its gradient was counted; each counts
        once. After the last one the model has the final parameters.

        Args:
            loader: A `DataLoader` on `batches()`, whose processes make something else of the
                records; what it gives for each minibatch is yielded then.

        Raises:
            ModelError: Something does not go together; says what and why.
        """
        if self._trainer is None:
            raise ModelError("minibatches(): expected wrap(model, optimizer) before it")
        if self._has_begun:
            raise ModelError(
                "minibatches(): expected one loop, found a second one; --num_epochs says how "
                "often it goes through the data"
            )
        if loader is not None:
            self._load_with(self._trainer, loader)
        self._has_begun = True
        self._job.begin(self._trainer, self._handover)
        while (step := self._handover.take()) is not None:
            self._step = step
            yield self._trainer.begin_step(step)
            if self._step is not None:
                raise ModelError(
                    "minibatches(): expected optimizer.step(loss) for each minibatch, found none "
                    "for the last one"
                )
        self._trainer.load(*self._job.finish())
        self.is_over = True

    def _load_with(self, trainer: ScriptTrainer, loader: Any) -> None:
        from elasticdl.backends.torch.loading import Loading

        loading = Loading(loader, self.batches(), self._job.seed + self._job.worker_id)
        loading.start()  # in this thread: its processes are begun before others have locks
        trainer.loading = loading

    def _hand_in(self, loss: Any) -> None:
        assert self._trainer is not None
        if self._step is None:
            raise ModelError(
                "step(loss): expected one call for each minibatch of controller.minibatches(), "
                "found one more"
            )
        result = self._trainer.end_step(self._step, loss)
        self._step = None
        self._handover.give(result)

    def _zero_grad(self) -> None:
        assert self._trainer is not None
        self._trainer.zero_grad()


class Optimizer:
    """Takes the place of the optimizer that was wrapped."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def step(self, loss: Any) -> None:
        """Hand in the gradients of this minibatch, and its mean loss.

        The update is made of the mean over the records of all workers. The model has it when the
        next minibatch comes.
        """
        self._controller._hand_in(loss)

    def zero_grad(self) -> None:
        """Forget gradients; each minibatch begins without any."""
        self._controller._zero_grad()


@contextlib.contextmanager
def serving(controller: Controller) -> Iterator[None]:
    """Have `init` return a controller within the block; for the process that runs a script."""
    _of_this_process.append(controller)
    try:
        yield
    finally:
        _of_this_process.clear()
