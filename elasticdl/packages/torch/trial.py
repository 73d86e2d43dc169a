"""Takes steps before training that leave no trace: their changes tell which values must be carried.

A step may change more than a store has: Python attributes, globals, buffers of a loss, parameters
that are not trained. Whatever is to go from one step to the next has to be known to all workers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.packages.frameworks.python_state import (
    MOST_BYTES,
    PythonState,
    compare_steps,
    is_same,
    shown,
)
from elasticdl.packages.torch.feed import TorchMinibatch
from elasticdl.packages.torch.structures import map_leaves
from elasticdl.packages.torch.table_parameter import TableParameter

log = logging.getLogger(__name__)

COUNT_IN_A_BUFFER = (
    "A number or tensor that steps change belongs in a buffer of the model or of a loss that is a "
    'torch.nn.Module (self.register_buffer("steps", torch.zeros(())), and self.steps += 1): '
    "buffers are carried"
)
# Added for a trial to parameters that are not trained; see `keeping_parameters`.
_MOVED = 0.5
_FLOATS_OF_NUMPY = (torch.float16, torch.float32, torch.float64)
_REGISTERS = ("_parameters", "_buffers", "_modules")


@contextmanager
def leaving_no_trace(model: nn.Module, loss: object) -> Iterator[None]:
    """Put back after the block what calls of model and loss have changed, random numbers too.

    Parameters are left as they are, and all of a module that gets its shape by the first call.
    """
    drawn = torch.get_rng_state()
    try:
        with note(model, loss):
            yield
    finally:
        torch.set_rng_state(drawn)


def note(model: nn.Module, loss: object) -> PythonState:
    """Note all that a model and a loss can reach."""
    return PythonState({"model": model, "loss": loss}, _visit)


def _visit(state: PythonState, name: str, thing: object) -> bool:
    if isinstance(thing, nn.Module):
        _visit_module(state, name, thing)
    elif isinstance(thing, torch.Tensor):
        _visit_tensor(state, name, thing)
    else:
        return False
    return True


def _visit_module(state: PythonState, name: str, module: nn.Module) -> None:
    own = vars(module)

    def is_of_pytorch(key: str) -> bool:
        return key in (*_REGISTERS, "training") or any(key in own[r] for r in _REGISTERS)

    # A lazy module gets its shape from the first call, and must keep it.
    if not any(is_lazy(p) for p in module._parameters.values()):
        state.names(f"{name}.", own, is_of_pytorch)
        state.names(f"{name}.", module._buffers)
    for key, child in module._modules.items():
        state.add(f"{name}.{key}", child)
    for key, parameter in module._parameters.items():
        for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            for hook in (getattr(parameter, hooks, None) or {}).values():
                state.add(f"a hook of {name}.{key}", hook)
    state.add(type(module).__qualname__, type(module))


def _visit_tensor(state: PythonState, name: str, tensor: torch.Tensor) -> None:
    elsewhere = tensor.is_meta or tensor.is_sparse or isinstance(tensor, TableParameter)
    if elsewhere or is_lazy(tensor) or tensor.nbytes > MOST_BYTES:
        return
    held, version = tensor.detach().clone(), tensor._version

    def undo() -> None:
        if tensor._version != version and tensor.shape == held.shape:
            tensor.detach().copy_(held)

    state.undo(undo)
    # NumPy has no bfloat16, and no floats of 8 bits.
    is_of_numpy = not held.is_floating_point() or held.dtype in _FLOATS_OF_NUMPY
    whole = held.cpu() if is_of_numpy else held.cpu().float()
    state.values[name] = whole.resolve_conj().resolve_neg().numpy()


@dataclass(frozen=True, slots=True)
class UntrainedState:
    """The values that steps change and a store can hold, beside what training always changes.

    Attributes:
        parameters: The names of parameters of the model that are not trained, such as a teacher's.
        of_loss: The modules of the loss, by name, if a step changes some of their buffers.
    """

    parameters: frozenset[str] = frozenset()
    of_loss: tuple[tuple[str, nn.Module], ...] = ()


def modules_of(loss: object, model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules that a loss can reach and that are no part of the model."""
    known = {id(module) for module in model.modules()}
    found: list[tuple[str, nn.Module]] = []

    def visit(state: PythonState, name: str, thing: object) -> bool:
        if not isinstance(thing, nn.Module):
            return isinstance(thing, torch.Tensor)
        if id(thing) not in known:
            known.update(id(module) for module in thing.modules())
            found.append((name, thing))
        return True

    PythonState({"loss": loss}, visit)
    return found


def find_carried(model: nn.Module, loss: object, step: Callable[[], None]) -> UntrainedState:
    """Return the values that a step changes and that must be carried; put the changes back.

    Args:
        model: The model; its parameters may change if they are not trained.
        loss: The user's.
        step: Makes a step that updates nothing, and leaves gradients.

    Raises:
        ModelError: It changes a parameter that is trained; or the loss has parameters that nobody
            would train.
    """
    modules = modules_of(loss, model)
    buffers = {name: _copies(module) for name, module in modules}
    after: dict[str, dict[str, torch.Tensor]] = {}

    def changes(moves: bool) -> set[str]:
        for module in (model, *(module for _, module in modules)):
            module.zero_grad()
        with leaving_no_trace(model, loss), keeping_parameters(model, moves) as found:
            step()
            after.update({name: _copies(module) for name, module in modules})
        return found

    try:
        changed = changes(moves=True)
    except ModelError:  # a deep backbone overflows with other weights than its own
        changed = changes(moves=False)
    for name, module in modules:
        for key, p in module.named_parameters():
            if p.grad is not None:
                raise ModelError(
                    f"{name}, a {type(module).__name__}, has the parameter {key!r}, which the job "
                    "would not train: move it to the model, and return what the loss needs of it "
                    "as one of the predictions"
                )
    of_loss = [
        (name, module)
        for name, module in modules
        if any(not _is_equal(now, buffers[name].get(key)) for key, now in after[name].items())
    ]
    return UntrainedState(frozenset(changed), tuple(of_loss))


class FixedParameters:
    """Knows a model's parameters, and which of them are trained: no step may change either.

    Args:
        model: The model as its function made it, before it is called.
    """

    def __init__(self, model: nn.Module) -> None:
        self._of = {name: (p, p.requires_grad) for name, p in model.named_parameters()}

    def check(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Compare them, by their names.

        Raises:
            ModelError: One was replaced, or is trained though it was not, or the other way round.
        """
        for name, parameter in parameters:
            known, is_trained = self._of.get(name, (parameter, parameter.requires_grad))
            if parameter is not known:
                raise ModelError(
                    f"the model replaces parameter {name!r} when it is called, which the other "
                    "workers would not know; make the parameter in __init__"
                )
            if parameter.requires_grad != is_trained:
                raise ModelError(
                    f"the model, or the loss, sets requires_grad of parameter {name!r} to "
                    f"{parameter.requires_grad} in a step: which parameters are trained is read "
                    "once, before training. Set it in the model function, or multiply what the "
                    "parameter gives by a buffer that steps change"
                )


@contextmanager
def keeping_parameters(model: nn.Module, moves: bool = False) -> Iterator[set[str]]:
    """Put parameters back after the block; yield a set that then names the ones that changed.

    Args:
        model: The model.
        moves: Parameters that are not trained have other values within the block. Otherwise a
            teacher that begins equal to its student would follow it without a visible change.

    Raises:
        ModelError: One has changed that is trained, which only updates may do.
    """
    named = [
        (name, p)
        for name, p in model.named_parameters()
        if not isinstance(p, TableParameter) and not is_lazy(p)
    ]
    values = [p.detach().clone() for _, p in named]
    by_of = [_MOVED * (moves and p.is_floating_point() and not p.requires_grad) for _, p in named]
    for (_, p), by in zip(named, by_of, strict=True):
        if by:
            p.detach().add_(by)
    changed: set[str] = set()
    try:
        yield changed
        for (name, p), value, by in zip(named, values, by_of, strict=True):
            if not _is_equal(p.detach(), value + by if by else value):
                if p.requires_grad:
                    raise ModelError(_changes_parameter(name))
                changed.add(name)
    finally:
        for (_, p), value in zip(named, values, strict=True):
            if p.shape == value.shape and not _is_equal(p.detach(), value):
                p.detach().copy_(value)


def _changes_parameter(name: str) -> str:
    return (
        f"the model changes its parameter {name!r} when it is called, which no other worker would "
        "know: parameters change by updates alone. Use a tensor that is computed from the "
        "parameter (self.weight.clamp(-1, 1)), or torch.nn.utils.parametrize; one that follows "
        "others, as a teacher does, has requires_grad_(False)"
    )


def _copies(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.named_buffers()}


def _is_equal(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    # torch.equal says that NaN differs from NaN.
    are_nan = (one != one) & (other != other)
    return bool(((one == other) | are_nan).all())


def check_history(
    model: nn.Module,
    loss: object,
    minibatch: TorchMinibatch,
    step: Callable[[TorchMinibatch], Sequence[Array]],
) -> None:
    """Refuse a model or a loss in which Python keeps something from one step to the next.

    Args:
        model: The user's.
        loss: The user's.
        minibatch: A first one.
        step: Makes a step from the initial values that updates nothing; returns what it computes.

    Raises:
        ModelError: Names the values that are kept.
    """
    at_first = PythonState({})

    def drawing_alike(one: TorchMinibatch) -> Sequence[Array]:
        # Both steps draw the same numbers of Python and NumPy, so only kept values can differ.
        at_first.put_back()
        return step(one)

    found = compare_steps(lambda: note(model, loss), drawing_alike, minibatch, _another(minibatch))
    if found.kept:
        raise ModelError(
            f"each step of training changes {shown(found.kept)}, which only Python has: other "
            "workers, a worker that replaces a lost one, and checkpoints do not have it. "
            f"{COUNT_IN_A_BUFFER}. Leave out what is kept to be looked at"
        )
    for name in found.drawn:
        log.warning(
            "%s gives random numbers of its own: each worker draws others, and a minibatch that is "
            "computed again gets others; those of torch are a function of the task and the "
            "minibatch",
            name,
        )
    if not all(map(is_same, *found.results)):
        log.warning(
            "a step gives another loss, or gradient, after another step than alone, from the "
            "same values: the model or the loss draws random numbers of its own, or keeps "
            "something where nobody looks for it, such as in the environment, an iterator or a file"
        )


def _another(minibatch: TorchMinibatch) -> TorchMinibatch:
    """Return a minibatch with smaller numbers in its features, and the same ids."""

    def smaller(leaf: torch.Tensor) -> torch.Tensor:
        if isinstance(leaf, torch.Tensor) and leaf.dtype.is_floating_point:
            return leaf * 0.5
        return leaf

    return replace(minibatch, features=map_leaves(smaller, minibatch.features), lookups=[])
