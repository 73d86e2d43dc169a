"""A user's PyTorch optimizer as what the store applies, and its learning rate."""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from elasticdl.backends.base import ClipSpec, OptimizerSpec
from elasticdl.errors import ModelError
from elasticdl.optimizers.update_rule import UpdateRule
from elasticdl.packages.frameworks.user_code import user_code
from elasticdl.packages.torch.clipping import Clipping
from elasticdl.packages.torch.trial import COUNT_IN_A_BUFFER

# Why an optimizer cannot be applied by ps replicas, each of which holds a part of the parameters.
REFUSED_KINDS = {
    "Adafactor": "it keeps sums over the rows and columns of a whole parameter; use Adagrad",
    "LBFGS": "it calls the model several times for one update; use Adam",
    "Muon": "it makes the update of a whole matrix orthogonal; use AdamW",
    "SparseAdam": "rows that a minibatch does not have are left alone in any case; use Adam",
}
_LOOKED_AHEAD = 200  # updates
# These settings change how PyTorch computes, and not the result.
_NO_MATTER = frozenset(
    {"foreach", "fused", "capturable", "params", "param_names", "lr", "initial_lr"}
)
# OneCycleLR, CyclicLR and SWALR keep these in the groups. They are the scheduler's, not settings.
_OF_SCHEDULERS = frozenset({"max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"})
_REFUSED_SETTINGS = {
    "maximize": "let loss() return the negative of what is to grow",
    "differentiable": "leave it out: no gradient flows through an update of the ps replicas",
}


Group = dict[str, Any]
"""The settings of a parameter group of an optimizer, of whatever type each of them has."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an optimizer for each parameter.

    Attributes:
        dense: The rule of dense parameters that have none of their own.
        of: The rule of a parameter by its `id`. A parameter that is missing here is not trained.
        rates: A factor of the learning rate, by the `id` of a parameter.
        rate: The learning rate by model version.
        clip: The clipping of gradients.
        optimizer: The user's optimizer.
    """

    dense: OptimizerSpec
    of: Mapping[int, OptimizerSpec]
    rate: Callable[[int], float]
    clip: ClipSpec | None = None
    rates: Mapping[int, float] = field(default_factory=dict)
    optimizer: torch.optim.Optimizer | None = None

    def own(self, parameter: nn.Parameter) -> OptimizerSpec | None:
        """Return the rule of a dense parameter, if it is not that of most."""
        rule = self.of.get(id(parameter), self.dense)
        return None if rule == self.dense else rule

    def rate_of(self, parameter: nn.Parameter) -> float:
        """Return what the learning rate is multiplied by for a parameter."""
        return self.rates.get(id(parameter), 1.0)


def read_rules(
    make: Callable[..., object],
    parameters: Sequence[tuple[str, nn.Parameter]],
    tables: Sequence[nn.Parameter],
    given: str = "optimizer(parameters) returns",
) -> Rules:
    """Call the user's `optimizer(parameters)`, and read what it returns.

    Args:
        make: The function; it returns an optimizer of `torch.optim`, a scheduler of
            `torch.optim.lr_scheduler` of one, or an `UpdateRule`.
        parameters: (name, parameter) of what is dense.
        tables: The parameters that stand for the tables.
        given: The first words of a message about the optimizer: where it comes from.

    Raises:
        ModelError: The optimizer, or one of its settings, is not one that the store applies.
    """
    names = {id(p): name for name, p in parameters}
    size_of = {id(p): int(p.numel()) for _, p in parameters}
    made = _call(make, [p for _, p in parameters] + list(tables))
    if isinstance(made, UpdateRule):
        rule = OptimizerSpec("own", program=made.program)
        every = [parameter for _, parameter in parameters] + list(tables)
        everywhere = {id(parameter): rule for parameter in every}
        return Rules(rule, everywhere, FixedRate(made.learning_rate))
    optimizer, rate = _rate_of(made, given)
    read = READERS.get(type(optimizer))
    kind = type(optimizer).__name__
    if read is None:
        known = ", ".join(known.__name__ for known in READERS)
        why = f"{REFUSED_KINDS[kind]}; " if kind in REFUSED_KINDS else ""
        raise ModelError(f"optimizer {kind} is not one that the ps replicas apply: {why}{known}")
    _refuse_begun(optimizer, kind)
    clip = _clip_of(optimizer, kind)
    of: dict[int, OptimizerSpec] = {}
    rates: dict[int, float] = {}
    for group, part in zip(optimizer.param_groups, parts_of_rate(optimizer), strict=True):
        for setting, instead in _REFUSED_SETTINGS.items():
            if group.get(setting):
                raise ModelError(f"optimizer {kind} has {setting}=True: {instead}")
        rule = read(group)
        of |= {id(parameter): rule for parameter in group["params"]}
        rates |= {id(parameter): part for parameter in group["params"]}
    own = {*names, *(id(table) for table in tables)}
    if foreign := len(of.keys() - own):
        raise ModelError(
            f"{given} an optimizer of {foreign} parameters that are not among those of the model "
            "that is trained: expected these alone; what else is to be trained, such as the "
            "parameters of a loss, belongs in the model"
        )
    dense = [(size_of[key], rule) for key, rule in of.items() if key in names]
    # The rule of most elements becomes the model's; other parameters name their own.
    most = max(dense, key=lambda one: one[0])[1] if dense else next(iter(of.values()), None)
    return Rules(most or OptimizerSpec("torch_sgd"), of, rate, clip, rates, optimizer)


def check_apart(
    optimizer: torch.optim.Optimizer, rate_changes: bool, loss: Callable[[], float]
) -> None:
    """Refuse a step that depends on what updates change in an optimizer; a worker's stands still.

    Args:
        optimizer: The user's; it is left as it was.
        rate_changes: Whether a scheduler, or a callback, sets its learning rate.
        loss: Takes a step of a minibatch that updates nothing; returns its loss.

    Raises:
        ModelError: Names the state that is read.
    """
    expected = loss()
    if _differs(loss, expected):  # each draws anew, which tells nothing
        return
    for group in optimizer.param_groups:
        # This is the state of an optimizer that has made steps. A loss that reads it changes.
        optimizer.state.update({p: {"step": torch.tensor(9.0)} for p in group["params"]})
    differs = _differs(loss, expected)
    optimizer.state.clear()
    if differs:
        raise _is_read("state, such as the number of steps")
    if not rate_changes:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        # The sum makes another rate even of 0.
        group["lr"] = 3 * group["lr"] + 0.01
    differs = _differs(loss, expected)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    if differs:
        raise _is_read("learning rate")


def _differs(loss: Callable[[], float], expected: float) -> bool:
    try:
        found = loss()
    except Exception:  # the user's code has looked at the state or the rate
        return True
    return found != expected and not (math.isnan(found) and math.isnan(expected))


def _is_read(what: str) -> ModelError:
    return ModelError(
        f"the model, or the loss, reads the optimizer's {what}, which never changes in a worker: "
        f"the process that applies the updates has it. {COUNT_IN_A_BUFFER}"
    )


def _call(make: Callable[..., object], parameters: list[nn.Parameter]) -> object:
    with user_code("optimizer(parameters)"):
        return make(parameters)


def _rate_of(made: object, given: str) -> tuple[torch.optim.Optimizer, Callable[[int], float]]:
    """Return the optimizer, and the learning rate by model version."""
    schedulers = torch.optim.lr_scheduler
    if isinstance(made, schedulers.ReduceLROnPlateau):
        raise ModelError(
            f"{given} ReduceLROnPlateau, which waits for evaluations; the callbacks() of a model "
            "file may return elasticdl.callbacks.ReduceLROnPlateau, which decides the same"
        )
    if isinstance(made, schedulers.LRScheduler):
        return made.optimizer, ScheduledRate(made)
    if not isinstance(made, torch.optim.Optimizer):
        raise ModelError(
            "optimizer(parameters) must return an optimizer of torch.optim, a scheduler of "
            "torch.optim.lr_scheduler or an elasticdl.optimizers.UpdateRule, found "
            f"{type(made).__name__}"
        )
    if _is_of_scheduler(made, vars(made).get("step")):
        raise ModelError(
            f"{given} an optimizer for which a scheduler of torch.optim.lr_scheduler was made, and "
            "its learning rate would not change: expected the scheduler in the place of the "
            "optimizer, or none"
        )
    return made, FixedRate(highest_rate(made))


class _Ended(ModelError):
    """The scheduler knows of no such step."""


@dataclass(frozen=True, slots=True)
class FixedRate:
    """The learning rate of an optimizer without a scheduler."""

    value: float

    def __call__(self, version: int) -> float:
        """Return the same rate for each step."""
        return self.value


class ScheduledRate:
    """The learning rate of a scheduler of PyTorch, which counts updates of the model."""

    def __init__(self, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
        """Take a scheduler that has made no step.

        Raises:
            ModelError: Its first step changes other settings, too.
        """
        self.name = type(scheduler).__name__
        self._scheduler = scheduler
        self._step = scheduler.step
        scheduler.optimizer._opt_called = True  # the order of step() calls that PyTorch warns of
        self._settings = _settings(scheduler.optimizer)
        self._parts = parts_of_rate(scheduler.optimizer)
        self._known = array("d", [highest_rate(scheduler.optimizer)])
        # A schedule may treat several rates differently, perhaps only later. The look ahead finds
        # that before training.
        self(1)
        if len(set(self._parts)) > 1:
            with contextlib.suppress(_Ended):  # a job may have fewer updates
                self(_LOOKED_AHEAD)

    def __call__(self, version: int) -> float:
        """Return the rate of the step that starts at `version`.

        Raises:
            ModelError: The scheduler knows of no such step, or changes other settings, too.
        """
        # A scheduler of PyTorch only goes forward, so all rates so far are kept.
        while len(self._known) <= version:
            self._advance()
            self._known.append(self._rate())
        return self._known[version]

    def _rate(self) -> float:
        optimizer = self._scheduler.optimizer
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        rate = rates[self._parts.index(1.0)]
        for found, part in zip(rates, self._parts, strict=True):
            # A schedule computes each group's rate by itself, so the proportions differ by
            # rounding.
            if not math.isclose(found, rate * part, rel_tol=1e-6, abs_tol=1e-12):
                raise ModelError(
                    f"the scheduler {type(self._scheduler).__name__} gives the parameter groups "
                    f"the learning rates {rates} at update {len(self._known)} of the model, and "
                    f"{self._parts} of one at first; one rate goes with each update, so expected a "
                    "scheduler that keeps these proportions (a lower bound such as eta_min is 0)"
                )
        return rate

    def _advance(self) -> None:
        kind, number = type(self._scheduler).__name__, len(self._known)
        try:
            self._step()
        except Exception as error:
            raise _Ended(
                f"the scheduler {kind} raised {type(error).__name__} at update {number} of the "
                f"model: {error}; it is asked for each update of all workers: the job's records "
                "times epochs by --minibatch_size (in all-reduce, by what all workers train at a "
                "time)"
            ) from error
        for before, now in zip(self._settings, _settings(self._scheduler.optimizer), strict=True):
            for setting in (name for name in before if before[name] != now[name]):
                raise ModelError(
                    f"the scheduler {kind} changes {setting} of the optimizer from "
                    f"{before[setting]} to {now[setting]} at update {number} of the model; "
                    "expected a scheduler of the learning rate alone: OneCycleLR and CyclicLR "
                    "take cycle_momentum=False"
                )


def highest_rate(optimizer: torch.optim.Optimizer) -> float:
    """Return the learning rate of the parameter group that has the highest at first."""
    parts = parts_of_rate(optimizer)
    return float(optimizer.param_groups[parts.index(1.0)]["lr"])


def parts_of_rate(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return what part of the highest learning rate each parameter group has at first."""
    groups = optimizer.param_groups
    rates = [float(group.get("initial_lr", group["lr"])) for group in groups]
    highest = max(rates)
    # A warm-up may begin with a rate of 0 for all groups.
    return [rate / highest if highest else 1.0 for rate in rates]


def _settings(optimizer: torch.optim.Optimizer) -> list[Group]:
    # A scheduler may change the rate, so that is no setting here.
    left_out = ("params", "lr")
    return [
        {name: value for name, value in group.items() if name not in left_out}
        for group in optimizer.param_groups
    ]


def _clip_of(optimizer: torch.optim.Optimizer, kind: str) -> ClipSpec | None:
    """Return how an optimizer clips gradients, by its one hook that is allowed.

    Raises:
        ModelError: It has other hooks.
    """
    hooks = [
        *optimizer._optimizer_step_pre_hooks.values(),
        *optimizer._optimizer_step_post_hooks.values(),
    ]
    clips = [hook for hook in hooks if isinstance(hook, Clipping)]
    if len(clips) < len(hooks):
        raise ModelError(
            f"optimizer {kind} has hooks of its steps, which the ps replicas cannot call; leave "
            "them out. To clip gradients, return elasticdl.optimizers.torch.clip_grad_norm("
            "optimizer, max_norm) or clip_grad_value(optimizer, clip_value)"
        )
    return ClipSpec(clips[0].kind, clips[0].limit) if clips else None


def _refuse_begun(optimizer: torch.optim.Optimizer, kind: str) -> None:
    """Refuse an optimizer with state of its own, or with methods that were set on it.

    Raises:
        ModelError: Names what there is.
    """
    begun = [kept for kept in optimizer.state.values() if kept and kept.get("step", 1) != 0]
    if begun:  # Adagrad makes its state, of step 0, with the optimizer
        raise ModelError(
            f"optimizer {kind} has state of {len(begun)} parameters, as after steps or "
            "load_state_dict; a job begins with none: expected a new optimizer, or "
            "--checkpoint_dir_for_init to go on from a checkpoint"
        )
    for name, own in vars(optimizer).items():
        if callable(getattr(type(optimizer), name, None)) and not _is_of_scheduler(optimizer, own):
            raise ModelError(
                f"{name}() was set on the optimizer {kind}, which ps replicas do not call; leave "
                "it out, or write your rule as elasticdl.optimizers.UpdateRule"
            )


def _is_of_scheduler(optimizer: torch.optim.Optimizer, own: object) -> bool:
    """Whether a `step` is what a scheduler puts around that of the class, to count its calls."""
    code = getattr(own, "__code__", None)
    # PyTorch's schedulers wrap the optimizer's step, to warn of a wrong order of calls.
    of_module = torch.optim.lr_scheduler.__file__
    is_around = getattr(own, "__wrapped__", None) is type(optimizer).step
    return is_around and getattr(code, "co_filename", None) == of_module


def _reader(kind: str, *same: str, **renamed: str) -> Callable[[Group], OptimizerSpec]:
    names = {name: name for name in same} | renamed

    def read(group: Group) -> OptimizerSpec:
        known = {
            *names.values(),
            *_NO_MATTER,
            *_OF_SCHEDULERS,
            *_REFUSED_SETTINGS,
            "betas",
            "decoupled_weight_decay",
        }
        for setting in group.keys() - known:
            raise ModelError(
                f"the optimizer has the setting {setting}={group[setting]!r}, which the ps "
                "replicas do not know; leave it out"
            )
        params = {ours: float(group[theirs]) for ours, theirs in names.items()}
        if "betas" in group:
            params["beta_1"], params["beta_2"] = (float(beta) for beta in group["betas"])
        return OptimizerSpec(kind, params)

    return read


_adamw = _reader("torch_adamw", "amsgrad", "weight_decay", epsilon="eps")
_l2_adam = _reader("torch_adam", "amsgrad", "weight_decay", epsilon="eps")


def _adam(group: Group) -> OptimizerSpec:
    # Adam with this setting is AdamW; PyTorch takes it for both classes.
    return (_adamw if group.get("decoupled_weight_decay") else _l2_adam)(group)


READERS: dict[type[torch.optim.Optimizer], Callable[[Group], OptimizerSpec]] = {
    torch.optim.SGD: _reader("torch_sgd", "momentum", "dampening", "nesterov", "weight_decay"),
    torch.optim.Adagrad: _reader(
        "torch_adagrad",
        "lr_decay",
        "weight_decay",
        epsilon="eps",
        initial_accumulator="initial_accumulator_value",
    ),
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.RMSprop: _reader(
        "torch_rmsprop", "alpha", "momentum", "centered", "weight_decay", epsilon="eps"
    ),
}
