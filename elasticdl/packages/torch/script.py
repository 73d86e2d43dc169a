"""A PyTorch model whose gradients a user's own training loop computes."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elasticdl.backends.base import Float32, Minibatch, ModelDescription, StepResult
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.model_notes import of_scheduler
from elasticdl.packages.frameworks.momenta import change_of
from elasticdl.packages.own_loops.asking import AskingTrainer
from elasticdl.packages.own_loops.handover import GradientRequest, Handover
from elasticdl.packages.torch.device import Device
from elasticdl.packages.torch.export import export_weights
from elasticdl.packages.torch.model import PlacedModel
from elasticdl.packages.torch.optimizer import Group, read_rules

_CPU = Device()


class ScriptTrainer(AskingTrainer):
    """Gradients are those that `backward` leaves in the parameters."""

    answer = "optimizer.step(loss)"

    def __init__(
        self,
        handover: Handover,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        seed: int,
        device: Device = _CPU,
    ) -> None:
        """Take over a model.

        Args:
            handover: The place where the worker asks the script.
            model: The script's.
            optimizer: One of `torch.optim`, or a scheduler of one.
            seed: The seed of the job.
            device: The device on which the script computes, and on which it has put the model.

        Raises:
            ModelError: Model or optimizer cannot be used here; says what and why.
        """
        super().__init__(handover, seed)
        _check_model(model)
        _check_optimizer(optimizer)
        self._placed = PlacedModel(model, device=device)
        if self._placed.tables:
            raise ModelError(
                f"the model has a table, {self._placed.tables[0].name!r}, of elasticdl.layers."
                "torch: a script trains by all-reduce, without tables; use torch.nn.Embedding, or "
                "a model file and --distribution_strategy=ParameterServerStrategy"
            )
        # A mean of changes cannot leave infinity, so each round replaces a value that begins so.
        self._momenta_of_buffers = [
            float(b.current().isfinite().all()) for b in self._placed.buffers
        ]
        self._momenta = self._placed.repeat(self._momenta_of_buffers)
        self._rules = read_rules(
            lambda parameters: optimizer, self._placed.parameters, [], "wrap(model, optimizer) gets"
        )
        self._unchanged = _Unchanged(self._placed, optimizer)
        if isinstance(optimizer, torch.optim.lr_scheduler.LRScheduler):
            optimizer.step = _refuse_scheduler_step
            self.notes = [of_scheduler(type(optimizer).__name__)]

    # --- the script's side -----------------------------------------------------------------------

    def load(self, dense: Float32, state: Float32) -> None:
        """Give the script's model these parameters.

        Raises:
            ModelError: The script has changed the parameters that were given before.
        """
        self._unchanged.check_values()
        self._placed.load(dense, state)
        self._unchanged.note()

    def _begin(self, step: GradientRequest, seed: int) -> None:
        self.load(step.dense, step.state)
        # Taking the gradients removes those that an evaluation of the script may have left.
        self._placed.gradient()
        self._placed.device.seed(seed)

    def end_step(self, step: GradientRequest, loss: object, gradients: object = None) -> StepResult:
        """Return what a script has computed: the gradients that lie in the parameters.

        Raises:
            ModelError: There are none, or something was changed that the job would not see.
        """
        if gradients is not None:
            raise ModelError(
                "apply_gradients(...) is for models in Keras; expected optimizer.step(loss) after "
                "loss.backward()"
            )
        value = _number(loss)
        self._unchanged.check(step.dense)
        if all(p.grad is None for _, p in self._placed.parameters):
            raise ModelError(
                "step(loss): no parameter has a gradient; call loss.backward() before it"
            )
        rules = self._rules
        self._unchanged.note_state()
        return StepResult(
            loss=value,
            row_grads=[],
            # A norm to clip by is that of the optimizer's parameters alone.
            dense_grad=self._placed.gradient(None if rules.clip is None else rules.of),
            state_delta=change_of(
                self._placed.trained_state(step.state), step.state, self._momenta
            ),
        )

    def zero_grad(self) -> None:
        """Forget gradients."""
        self._placed.gradient()

    # --- the worker's side -----------------------------------------------------------------------

    def build(self, sample: Minibatch) -> ModelDescription:
        """Describe the model; the sample is not needed.

        A parameter that is frozen now may be trained later: until then it has no gradient, and
        rests.
        """
        of, placed = self._rules.of, self._placed

        def is_trained(number: int) -> bool:
            return id(placed.parameters[number][1]) in of

        return ModelDescription(
            tables=(),
            dense=placed.describe_dense(is_trained, self._rules),
            state=placed.describe_state(self._momenta_of_buffers),
            optimizer=self._rules.dense,
            seed=self._seed,
            clip=self._rules.clip,
        )

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return the values that the model has now."""
        return self._placed.dense_values(), self._placed.state_values()

    def learning_rate(self, version: int) -> float:
        """Return the learning rate for a step from model version `version`."""
        return self._rules.rate(version)

    def _write(self, directory: Path) -> None:
        why = "the model is called by a script, in ways that only it knows"
        export_weights(self._placed.model, directory, why)


class _Unchanged:
    """Finds what a script changes that the job would not see, so that it would be lost."""

    def __init__(
        self,
        placed: PlacedModel,
        optimizer: torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler,
    ) -> None:
        self._placed = placed
        self._has_schedule = isinstance(optimizer, torch.optim.lr_scheduler.LRScheduler)
        self._optimizer = optimizer.optimizer if self._has_schedule else optimizer
        self._settings = self._now()
        self._parameters = self._ids()
        self._kept: torch.Tensor | None = None
        self._kept_state = np.zeros(0, np.float32)

    def note(self) -> None:
        """Note what the model was given."""
        self._kept = self._placed.kept()
        self.note_state()

    def note_state(self) -> None:
        """Note the buffers, which a step changes, as they are now."""
        self._kept_state = self._placed.state_values()

    def check_values(self) -> None:
        """Compare the model with the values that were noted.

        Raises:
            ModelError: Names a parameter or buffer that has not.
        """
        if self._kept is None:
            return
        if changed := self._placed.changed(self._kept):
            raise ModelError(
                f"the script has changed parameter {changed!r} by itself, which would be lost: "
                "the job makes the updates, of the gradients that step(loss) hands in. Change the "
                "model before wrap(); keep parameters within bounds where the model uses them"
            )
        state = self._placed.state_values()
        if not np.array_equal(state, self._kept_state, equal_nan=True):
            raise ModelError(
                "the script has changed a buffer of the model after step(loss), which would be "
                "lost: change it before, and call model.eval() before an evaluation"
            )

    def check(self, dense: Float32) -> None:
        """Look, at a step, whether model and optimizer are as they were when the model was wrapped.

        Raises:
            ModelError: Names the change.
        """
        for constant in self._placed.constants:
            constant.check()
        if changed := self._placed.moved_and_changed(dense):
            raise ModelError(
                f"parameter {changed!r} was moved or replaced after wrap(); move and change the "
                "model before it"
            )
        if self._ids() != self._parameters:
            raise ModelError(
                "the model has other parameters than at wrap(model, optimizer), which the other "
                "workers would not have: make all of them before it, and set requires_grad of "
                "those that are trained later"
            )
        now = self._now()
        if len(now) != len(self._settings):
            raise ModelError(
                "the script has added parameters to the optimizer that it gave to wrap(): expected "
                "all of them from the beginning; those without a gradient are left as they are"
            )
        for group, (before, after) in enumerate(zip(self._settings, now, strict=True)):
            if before["lr"] != after["lr"]:
                raise ModelError(
                    f"the script has changed the learning rate of the optimizer{_of(group)}, which "
                    "the other workers would not know: give wrap() a scheduler of "
                    "torch.optim.lr_scheduler"
                )
            for name in (name for name in before if before[name] != after.get(name)):
                raise ModelError(
                    f"the script has changed {name} of the optimizer{_of(group)}, which the job "
                    "does not read again: expected the same through the whole job"
                )

    def _ids(self) -> list[int]:
        return [id(parameter) for parameter in self._placed.model.parameters()]

    def _now(self) -> list[Group]:
        groups: list[Group] = []
        for group in self._optimizer.param_groups:
            settings = {name: value for name, value in group.items() if name != "lr"}
            settings["params"] = [id(parameter) for parameter in group["params"]]
            settings["lr"] = None if self._has_schedule else float(group["lr"])
            groups.append(settings)
        return groups


def _of(group: int) -> str:
    return f" (parameter group {group})" if group else ""


def _check_model(model: nn.Module) -> None:
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(value):
            raise ModelError(
                f"wrap(model, optimizer): {name!r} has no shape yet; call the lazy model once "
                "before it"
            )


def _check_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
        raise ModelError(
            "wrap(model, optimizer): expected an optimizer of torch.optim, or a scheduler of one, "
            f"found {type(optimizer).__name__}"
        )


def _number(loss: torch.Tensor | float) -> float:
    if isinstance(loss, torch.Tensor) and loss.numel() != 1:
        raise ModelError(
            f"step(loss): expected one number, the mean over the minibatch, found a tensor of "
            f"shape {tuple(loss.shape)}"
        )
    if callable(loss) and not isinstance(loss, torch.Tensor):
        raise ModelError("step(loss): expected the loss; a closure is not called here")
    return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def _refuse_scheduler_step(*_: object) -> NoReturn:
    raise ModelError(
        "the script calls step() of the scheduler that it gave to wrap(); leave it out: the "
        "scheduler counts the updates of all workers by itself"
    )
