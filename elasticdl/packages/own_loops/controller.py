"""Elastic data shards and all-reduce for a user's own training loop, run by `elasticdl run`.

    controller = elasticdl.controller.init()
    optimizer = controller.wrap(model, torch.optim.Adam(model.parameters()))
    for records in controller.minibatches():
        loss = ...
        loss.backward()
        optimizer.step(loss)  # in Keras: apply_gradients(zip(gradients, variables), loss=loss)

A script of `elasticdl run --shards_only` keeps its model and makes its updates itself:

    controller = elasticdl.controller.init()
    for records in controller.minibatches():
        ...

The worker of this process (leases, rounds, updates) runs in threads of its own. The script's thread
calls this module, which hands minibatches and gradients over between the two.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from elasticdl.backends.base import (
    Float32,
    Minibatch,
    ModelDescription,
    OptimizerSpec,
    StepResult,
)
from elasticdl.errors import ConfigError, ModelError
from elasticdl.packages.own_loops.asking import AskingTrainer, LoaderBatches
from elasticdl.packages.own_loops.frameworks import ScriptFrameworks
from elasticdl.packages.own_loops.handover import GradientRequest, Handover


class ShardsTrainer(AskingTrainer):
    """A model without a parameter, whose updates count minibatches and change nothing."""

    answer = "done()"

    def load(self, dense: Float32, state: Float32) -> None:
        """There are no parameters."""

    def _begin(self, step: GradientRequest, seed: int) -> None:
        """The model, and the random numbers, are the script's affair."""

    def end_step(
        self,
        step: GradientRequest,
        loss: Any,
        gradients: Iterable[tuple[object, object]] | None = None,
    ) -> StepResult:
        """Return that a minibatch is done.

        Raises:
            ModelError: The loss is not a number.
        """
        try:
            value = float(loss)
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"done(loss): expected one number, found {type(loss).__name__}"
            ) from error
        nothing = np.zeros(0, np.float32)
        return StepResult(loss=value, row_grads=[], dense_grad=nothing, state_delta=nothing)

    def zero_grad(self) -> None:
        """There are no gradients."""

    def build(self, sample: Minibatch) -> ModelDescription:
        """Describe a model that has nothing."""
        return ModelDescription((), (), (), OptimizerSpec("sgd"), self._seed)

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return nothing."""
        return np.zeros(0, np.float32), np.zeros(0, np.float32)

    def learning_rate(self, version: int) -> float:
        """Return what changes nothing."""
        return 0.0

    def _write(self, directory: Path) -> None:
        raise ModelError(
            f"{directory}: expected a script that saves its model itself, since the job of "
            "--shards_only has none; leave --output out"
        )


__all__ = ["Controller", "Optimizer", "init"]

_of_this_process: list[Controller] = []  # at most one: a process runs one script


class WorkerServices(Protocol):
    """The services that a worker process gives to its script.

    Attributes:
        worker_id: The id of this process.
        seed, num_threads, device: The random seed, threads and device of the script.
        is_shards_only: Whether the script takes only minibatches and makes its updates itself.
    """

    worker_id: int
    is_shards_only: bool
    seed: int
    num_threads: int
    device: str

    def begin(self, trainer: AskingTrainer, handover: Handover) -> None:
        """Take part in the job, in other threads; they ask for steps through the handover."""
        ...

    def place(self) -> tuple[int, int] | None:
        """Return the present rank and world size; None while there is no world."""
        ...

    def finish(self) -> tuple[Float32, Float32]:
        """Leave the job after the last step; return the final parameters and state."""
        ...


def init() -> Controller:
    """Return the controller of this process; a script calls this first after its imports.

    The call sets the number of threads of the framework that the script has imported. It also
    sets the random seed, so all workers draw the same random numbers from here on.

    Raises:
        ConfigError: The script was not started by `elasticdl run`.
        ModelError: The script has imported no framework, or there is no such device.
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

    def __init__(self, job: WorkerServices) -> None:
        self._job = job
        self._handover = Handover()
        self._frameworks: ScriptFrameworks | None = None
        self._trainer: AskingTrainer | None = None
        self._batches: LoaderBatches | None = None
        self._has_begun = False
        self._step: GradientRequest | None = None  # on which the script works now
        self.is_over = False
        """Whether the script has had all of its minibatches."""

    def _prepare(self) -> None:
        job = self._job
        needs_one = not job.is_shards_only
        self._frameworks = ScriptFrameworks(job.seed, job.num_threads, job.device, needs_one)

    @property
    def worker_id(self) -> int:
        """The number of this worker. A worker that replaces a lost one has a new number."""
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
        """The number of workers that reduce together now.

        Raises:
            ModelError: There is no world before the first minibatch.
        """
        return self._place("world_size")[1]

    def _place(self, what: str) -> tuple[int, int]:
        if self._job.is_shards_only:
            raise ModelError(
                f"{what}: the workers of elasticdl run --shards_only know nothing of each other; "
                "worker_id is this one's number"
            )
        place = self._job.place()
        if place is None:
            raise ModelError(
                f"{what}: expected to be asked for within the loop over minibatches(), found a "
                "worker that is in no world yet"
            )
        return place

    @property
    def device(self) -> str:
        """The device of this worker, from `--worker_devices`: for example "cpu" or "cuda:0"."""
        return self._job.device

    def wrap(self, model: Any, optimizer: Any) -> Optimizer:
        """Give the job a model; return an object that replaces its optimizer.

        Args:
            model: A `torch.nn.Module`, float32 on `device`; or a `keras.Model` that is built.
            optimizer: An optimizer of `torch.optim` or of `keras.optimizers` that the job can
                apply. In PyTorch it may be inside a scheduler of `torch.optim.lr_scheduler`.

        Raises:
            ModelError: The job cannot use one of them; the message says why.
        """
        if self._job.is_shards_only:
            raise ModelError(
                "wrap(model, optimizer): expected a script that makes its updates itself, since "
                "it was started with --shards_only; leave the flag out for all-reduce"
            )
        if self._trainer is not None:
            raise ModelError("wrap(model, optimizer): expected one model, found a second call")
        assert self._frameworks is not None, "init() has prepared this controller"
        self._trainer = self._frameworks.trainer(self._handover, model, optimizer)
        return Optimizer(self)

    def batches(self) -> LoaderBatches:
        """Return the minibatches as a `batch_sampler` of a `torch.utils.data.DataLoader`.

        The loader then asks its dataset for records instead of indices: `dataset[record]` returns
        an example, in a process of the loader. Give the loader to `minibatches`.

        Raises:
            ModelError: The script has not imported PyTorch.
        """
        if self._batches is None and self._frameworks is not None:
            self._batches = self._frameworks.loader_batches()
        if self._batches is None:
            raise ModelError(
                "batches(): is for a DataLoader of PyTorch, which the script has not imported "
                "before init(); go through minibatches(), and make tensors of the records there"
            )
        return self._batches

    def minibatches(self, loader: Any = None) -> Iterator[Any]:
        """Yield lists of records, until the job has no more for this worker.

        The script calls `step` for each minibatch, or `apply_gradients` in Keras. The model has
        the newest parameters when a minibatch comes. A minibatch comes again if the parameters
        changed before its gradient was counted; each minibatch counts once. After the last one
        the model has the final parameters.

        A script of `--shards_only` calls none of these. A minibatch is done when the script
        asks for the next one, or calls `done`.

        Args:
            loader: A `DataLoader` on `batches()`, whose processes make examples of the records.
                This method then yields what the loader returns for each minibatch.

        Raises:
            ModelError: The calls or settings do not fit together; the message says why.
        """
        if self._job.is_shards_only and self._trainer is None:
            self._trainer = ShardsTrainer(self._handover, self._job.seed)
        if self._trainer is None:
            raise ModelError(
                "minibatches(): expected wrap(model, optimizer) before it; a script that makes "
                "its updates itself is for elasticdl run --shards_only"
            )
        if self._has_begun:
            raise ModelError(
                "minibatches(): expected one loop, found a second one; --num_epochs says how "
                "often it goes through the data"
            )
        if loader is not None:
            # Processes of different workers must not draw the same random numbers.
            seed = self._job.seed + self._job.worker_id
            self._trainer.load_with(loader, self.batches(), seed)
        self._has_begun = True
        self._job.begin(self._trainer, self._handover)
        while (step := self._handover.take()) is not None:
            self._step = step
            yield self._trainer.begin_step(step)
            if self._step is not None and self._job.is_shards_only:
                self.done()
            if self._step is not None:
                raise ModelError(
                    f"minibatches(): expected {self._trainer.answer} for each minibatch, found "
                    "none for the last one"
                )
        self.is_over = True  # first: a worker that has come too late ends in `finish`
        self._trainer.load(*self._job.finish())

    def done(self, loss: Any = 0.0) -> None:
        """Count a minibatch of a `--shards_only` job before the next one is asked for.

        Args:
            loss: The mean loss of the minibatch, which the job shows.

        Raises:
            ModelError: The job takes gradients, or there is no minibatch to count.
        """
        if not self._job.is_shards_only:
            raise ModelError(
                "done(): is for elasticdl run --shards_only; a minibatch of other jobs is done by "
                f"{'the optimizer' if self._trainer is None else self._trainer.answer}"
            )
        if self._trainer is None:
            raise ModelError("done(): expected to be called within the loop over minibatches()")
        self._hand_in(loss)

    def _hand_in(self, loss: Any, gradients: Any = None) -> None:
        assert self._trainer is not None
        if self._step is None:
            raise ModelError(
                f"{self._trainer.answer}: expected one call for each minibatch of "
                "controller.minibatches(), found one more"
            )
        result = self._trainer.end_step(self._step, loss, gradients)
        self._step = None
        self._handover.give(result)

    def _zero_grad(self) -> None:
        assert self._trainer is not None
        self._trainer.zero_grad()


class Optimizer:
    """Replaces the optimizer that the script gave to `wrap`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def step(self, loss: Any) -> None:
        """Hand in the mean loss and the gradients that `backward` has left in a PyTorch model.

        The update uses the mean over the records of all workers. The model has the update when
        the next minibatch comes.

        Raises:
            ModelError: The call is wrong; the message says why.
        """
        self._controller._hand_in(loss)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], loss: Any = None) -> None:
        """Hand in the gradients and the mean loss of this minibatch of a Keras model; see `step`.

        Args:
            grads_and_vars: `zip(gradients, model.trainable_variables)`.
            loss: Mean over the minibatch.

        Raises:
            ModelError: The call is wrong; the message says why.
        """
        self._controller._hand_in(loss, grads_and_vars)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of a PyTorch model; each minibatch begins without gradients.

        Raises:
            ModelError: Gradients of zero are asked for.
        """
        if not set_to_none:
            raise ModelError(
                "zero_grad(set_to_none=False): expected set_to_none=True, as PyTorch has it by "
                "default: a parameter without a gradient is left as it is, and with a gradient of "
                "zero momentum and decay would change it"
            )
        self._controller._zero_grad()


@contextlib.contextmanager
def serving(controller: Controller) -> Iterator[None]:
    """Let `init` return this controller within the block; the worker process uses it."""
    _of_this_process.append(controller)
    try:
        yield
    finally:
        _of_this_process.clear()
