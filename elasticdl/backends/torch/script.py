"""A PyTorch model whose gradients a user's own training loop computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from elasticdl.backends.base import (
    CallbackNeeds,
    Float32,
    Int64,
    Lookup,
    Minibatch,
    ModelDescription,
    StepResult,
    TableSource,
)
from elasticdl.backends.handover import Handover, Step
from elasticdl.backends.numpy import picker
from elasticdl.backends.torch.device import Device
from elasticdl.backends.torch.export import export_weights
from elasticdl.backends.torch.loading import Loading
from elasticdl.backends.torch.model import PlacedModel
from elasticdl.backends.torch.optimizer import one_rate, read_rules
from elasticdl.data.base import Records
from elasticdl.errors import ModelError
from elasticdl.job import CallbackCall, CallbackResult, MetricStates, Mode

_CPU = Device()


@dataclass(frozen=True, slots=True)
class ScriptMinibatch(Minibatch):
    """Records as the script gets them, and the seed of the random numbers of the step."""

    seed: int


class ScriptTrainer:
    """A `Trainer` that asks a script for its steps. Evaluation is the script's own affair.

    All ranks compute a round on the same parameters and buffers. So the new value of a buffer is
    the old one and the mean of the changes, whatever the layer does with it.
    """

    callbacks: CallbackNeeds | None = None
    ids_need_parameters = False

    def __init__(
        self, handover: Handover, model: Any, optimizer: Any, seed: int, device: Device = _CPU
    ) -> None:
        """Take over a model.

        Args:
            handover: Where the script is asked.
            model: The script's.
            optimizer: Of `torch.optim`, or a scheduler of one.
            seed: Of the job.
            device: Where the script computes, and has put the model.

        Raises:
            ModelError: Model or optimizer cannot be used here; says what and why.
        """
        _check_model(model)
        self._handover = handover
        self._seed = seed
        self.loading: Loading | None = None
        """Makes what the script gets of the records; None: the script does that."""
        self._placed = PlacedModel(model, device=device)
        if self._placed.tables:
            raise ModelError(
                f"the model has a table, {self._placed.tables[0].name!r}, of elasticdl.layers."
                "torch: a script trains by all-reduce, without tables; use torch.nn.Embedding, or "
                "a model file and --distribution_strategy=ParameterServerStrategy"
            )
        self._rules = read_rules(lambda parameters: optimizer, self._placed.parameters, [])
        self._optimizer = optimizer
        if isinstance(optimizer, torch.optim.lr_scheduler.LRScheduler):
            optimizer.step = _refuse_scheduler_step
            self._fixed_rate = None
        else:
            self._fixed_rate = one_rate(optimizer)
        self._places = [p.data_ptr() for _, p in self._placed.parameters]

    # --- the script's side -----------------------------------------------------------------------

    def load(self, dense: Float32, state: Float32) -> None:
        """Give the script's model these parameters."""
        self._placed.load(dense, state)

    def begin_step(self, step: Step) -> Any:
        """Make the model ready for a step; return its records, or what a loader made of them."""
        assert isinstance(step.minibatch, ScriptMinibatch)
        self._placed.load(step.dense, step.state)
        self._placed.gradient()
        self._placed.device.seed(step.minibatch.seed)
        return step.minibatch.features

    def end_step(self, step: Step, loss: Any) -> StepResult:
        """Return what a script has computed: the gradients that lie in the parameters.

        Raises:
            ModelError: There are none, or something was changed that the job would not see.
        """
        value = _number(loss)
        self._check_unchanged()
        if all(p.grad is None for _, p in self._placed.parameters):
            raise ModelError(
                "step(loss): no parameter has a gradient; call loss.backward() before it"
            )
        return StepResult(
            loss=value,
            row_grads=[],
            dense_grad=self._placed.gradient(),
            state_delta=self._placed.state_values() - step.state,
        )

    def zero_grad(self) -> None:
        """Forget gradients."""
        self._placed.gradient()

    def _check_unchanged(self) -> None:
        for constant in self._placed.constants:
            constant.check()
        for (name, parameter), place in zip(self._placed.parameters, self._places, strict=True):
            if parameter.data_ptr() != place:
                raise ModelError(
                    f"parameter {name!r} was moved or replaced after wrap(); move and change the "
                    "model before it"
                )
        if self._fixed_rate is not None and one_rate(self._optimizer) != self._fixed_rate:
            raise ModelError(
                "the script has changed the learning rate of the optimizer, which the other "
                "workers would not know: give wrap() a scheduler of torch.optim.lr_scheduler"
            )

    # --- the worker's side -----------------------------------------------------------------------

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Cut the records of a task into minibatches, in an order drawn from the seed."""
        chunks = list(records)
        if not chunks:
            return
        pick = picker(chunks, False)
        order = np.arange(sum(len(chunk) for chunk in chunks))
        np.random.default_rng(seed).shuffle(order)
        starts = range(0, len(order), minibatch_size)
        cut = [pick(order[start : start + minibatch_size]) for start in starts]
        loaded = cut if self.loading is None else self.loading.loaded(cut)
        for start, batch, features in zip(starts, cut, loaded, strict=True):
            (drawn,) = np.random.SeedSequence([seed, start]).generate_state(1, np.uint64)
            yield ScriptMinibatch(features, None, len(batch), seed=int(drawn) >> 1)

    def build(self, sample: Minibatch) -> ModelDescription:
        """Describe the model; the sample is not needed."""
        of, placed = self._rules.of, self._placed

        def is_trained(number: int) -> bool:
            parameter = placed.parameters[number][1]
            return parameter.requires_grad and id(parameter) in of

        return ModelDescription(
            tables=(),
            dense=placed.describe_dense(is_trained, self._rules.decays),
            state=placed.describe_state([1.0] * len(placed.buffers)),
            optimizer=self._rules.dense,
            seed=self._seed,
        )

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return the values that the model has now."""
        return self._placed.dense_values(), self._placed.state_values()

    def learning_rate(self, version: int) -> float:
        """Return the learning rate for a step from model version `version`."""
        return self._rules.rate(version)

    def train_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Ask the script."""
        return self._handover.compute(Step(minibatch, dense, state))

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write the parameters and buffers; what calls the model is the script's."""

        def write() -> None:
            self._placed.load(dense, state)
            why = "the model is called by a script, in ways that only it knows"
            export_weights(self._placed.model, directory, why)

        self._handover.call(write)

    def measure(self, minibatches: Sequence[Minibatch], predictions: Sequence[Any]) -> None:
        """Add nothing: metrics are the script's."""

    def new_metrics(self) -> None:
        """There are none."""

    def metric_states(self) -> MetricStates:
        """There are none."""
        return {}

    def metric_results(self, states: MetricStates) -> dict[str, float]:
        """There are none."""
        return {}

    def given_rows(self) -> Sequence[tuple[int, Float32]]:
        """There are no tables."""
        return ()

    def set_lookup(self, pull: Lookup) -> None:
        """There are no tables."""

    def id_sites(self) -> Sequence[int]:
        """There are no tables."""
        return ()

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """There are no tables."""
        return ()

    def names(self, minibatch: Minibatch, sites: Sequence[int]) -> Sequence[Sequence[str]]:
        """Never called: there are no tables."""
        raise ModelError("the model of a script has no tables")

    def evaluate_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Never called: the job of a script has no evaluations."""
        raise ModelError("the job of a script has no evaluations")

    def predict_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> Any:
        """Never called: the job of a script has no predictions."""
        raise ModelError("the job of a script has no predictions")

    def run_callbacks(self, call: CallbackCall) -> CallbackResult:
        """Never called: a script calls its own."""
        raise ModelError("the job of a script has no callbacks")


def _check_model(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ModelError(
            "wrap(model, optimizer): expected a torch.nn.Module, found "
            f"{type(model).__module__}.{type(model).__qualname__}; loops in other frameworks are "
            "not run so far"
        )
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(value):
            raise ModelError(
                f"wrap(model, optimizer): {name!r} has no shape yet; call the lazy model once "
                "before it"
            )


def _number(loss: Any) -> float:
    if isinstance(loss, torch.Tensor) and loss.numel() != 1:
        raise ModelError(
            f"step(loss): expected one number, the mean over the minibatch, found a tensor of "
            f"shape {tuple(loss.shape)}"
        )
    if callable(loss) and not isinstance(loss, torch.Tensor):
        raise ModelError("step(loss): expected the loss; a closure is not called here")
    return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def _refuse_scheduler_step(*_: Any) -> NoReturn:
    raise ModelError(
        "the script calls step() of the scheduler that it gave to wrap(); leave it out: the "
        "scheduler counts the updates of all workers by itself"
    )
