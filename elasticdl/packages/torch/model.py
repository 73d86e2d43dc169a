"""A user's PyTorch model: its tables, and its parameters and buffers as two flat vectors."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from elasticdl.backends.base import (
    Float32,
    VariableDescription,
)
from elasticdl.errors import ElasticdlError, ModelError, place_of
from elasticdl.packages.frameworks.lookup import looking_up
from elasticdl.packages.frameworks.towers import towers_elsewhere
from elasticdl.packages.torch.buffers import sorted_buffers
from elasticdl.packages.torch.device import Device
from elasticdl.packages.torch.layers import Remote, StatisticsTable
from elasticdl.packages.torch.optimizer import Rules
from elasticdl.packages.torch.structures import Nested, describe, leaves
from elasticdl.packages.torch.table_parameter import TableParameter, computed_on
from elasticdl.packages.torch.tables import LayerTable, tables_of
from elasticdl.packages.torch.trial import UntrainedState, keeping_parameters, leaving_no_trace

Lookup = Callable[[nn.Module, torch.Tensor], torch.Tensor]
_CPU = Device()


@dataclass(frozen=True, slots=True)
class TowerOutputs:
    """The outputs of a tower that is computed elsewhere; a model looks them up like rows."""

    name: str
    dim: int


class PlacedModel:
    """The model, with its parameters on a flat vector and its tables elsewhere.

    Args:
        model: The result of the model function, called with a lookup in force.
        features: A first minibatch's; None if the model is called elsewhere, and has no tables.
        device: The device of the model.

    Attributes:
        device: The device that computes the model; features are moved there.
        tables: The tables of the embedding layers.
        towers: The towers that are computed elsewhere.
        sites: The number among `sources` of each call of an embedding layer or tower, in order.
        changes_rows: Whether the model changes what it has looked up in place.
        parameters: (name, parameter) of what is dense.
    """

    def __init__(self, model: nn.Module, features: Nested = None, device: Device = _CPU) -> None:
        self._take(model)
        self.device = device
        self.tables = tables_of(model)
        self._table_of = {id(t.weight): k for k, t in enumerate(self.tables)}
        self.towers: tuple[TowerOutputs, ...] = ()
        self.sites: tuple[int, ...] = ()
        self.changes_rows = False
        if features is not None:
            self._meet(features)
        self._carried = UntrainedState()
        self.parameters = _dense_of(model, self._carried)
        for name, parameter in self.parameters:
            if parameter.dtype != torch.float32 or parameter.device != device.torch:
                where = "the CPU" if device.is_cpu else device.name
                raise ModelError(
                    f"parameter {name!r} is {parameter.dtype} on {parameter.device}; expected "
                    f"float32 on {where}: use torch.autocast in forward to compute in less, and "
                    "--worker_devices to compute on a GPU"
                )
        _refuse_common_memory(self.parameters)
        self.move(device)

    def move(self, device: Device) -> None:
        """Put parameters and buffers on a device, where the model is computed from now on."""
        self.device = device
        self._flat, self._parts = _flattened([p for _, p in self.parameters], device)
        self._sort_buffers()

    @property
    def has_state_of_loss(self) -> bool:
        """Whether steps change buffers of the loss."""
        return bool(self._carried.of_loss)

    def carry(self, carried: UntrainedState) -> None:
        """Take what steps change beside parameters and buffers of the model into the state."""
        self._carried = carried
        self.parameters = _dense_of(self.model, carried)
        self.move(self.device)

    def _sort_buffers(self) -> None:
        self.buffers, self.constants = sorted_buffers(self.model, self._carried, self.device)
        self._sizes = [int(b.value.numel()) for b in self.buffers]
        ends = itertools.accumulate(self._sizes)
        self._counters = [
            (buffer, slice(end - size, end))
            for buffer, size, end in zip(self.buffers, self._sizes, ends, strict=True)
            if buffer.is_counter
        ]

    @contextmanager
    def on_cpu(self) -> Iterator[None]:
        """Within the block the model is on the CPU."""
        device = self.device
        if device.is_cpu:
            yield
            return
        self.move(_CPU)
        try:
            yield
        finally:
            self.move(device)

    @property
    def sources(self) -> tuple[LayerTable | TowerOutputs, ...]:
        """The sources of rows: the tables, then the towers that are elsewhere."""
        return (*self.tables, *self.towers)

    def remotes(self) -> list[Remote]:
        """Return the towers that the model has."""
        return [module for module in self.model.modules() if isinstance(module, Remote)]

    def place_towers(self, towers: Sequence[TowerOutputs], features: Nested) -> None:
        """Have all towers be computed elsewhere from now on; find the sites anew."""
        for number, (remote, tower) in enumerate(zip(self.remotes(), towers, strict=True)):
            remote.source = len(self.tables) + number
            remote.embedding_dim = tower.dim
        self.towers = tuple(towers)
        self._meet(features)

    def table_of(self, layer: nn.Module) -> int:
        """Return the number of a layer's table, or of a tower among `sources`."""
        if isinstance(layer, Remote) and layer.source is not None:
            return layer.source
        table = self._table_of.get(id(layer.weight))
        if table is None:
            raise ModelError(
                f"{type(layer).__name__}({layer.num_embeddings}, {layer.embedding_dim}) is called "
                "but is not part of the model; make it an attribute of the module in __init__"
            )
        return table

    def describe_dense(
        self, is_trained: Callable[[int], bool], rules: Rules
    ) -> tuple[VariableDescription, ...]:
        """Name the parameters and say where each lies."""
        offset, described = 0, []
        for k, (name, parameter) in enumerate(self.parameters):
            shape = tuple(int(n) for n in parameter.shape)
            described.append(
                VariableDescription(
                    name,
                    shape,
                    offset,
                    trainable=is_trained(k),
                    optimizer=rules.own(parameter),
                    rate=rules.rate_of(parameter),
                    may_rest=True,
                )
            )
            offset += int(parameter.numel())
        return tuple(described)

    def describe_state(self, momenta: Sequence[float]) -> tuple[VariableDescription, ...]:
        """Name the buffers and say where each lies."""
        offset, described = 0, []
        for buffer, momentum in zip(self.buffers, momenta, strict=True):
            shape = tuple(int(n) for n in buffer.value.shape)
            described.append(VariableDescription(buffer.name, shape, offset, momentum=momentum))
            offset += int(buffer.value.numel())
        return tuple(described)

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return the flat dense and state vectors; see `Values`."""
        return self.dense_values(), self.state_values()

    def given_rows(self) -> Sequence[tuple[int, Float32]]:
        """Return the tables whose rows the model file sets, and the rows."""
        tables = enumerate(self.tables)
        return [(k, t.weight.given) for k, t in tables if t.weight.given is not None]

    def dense_values(self) -> Float32:
        """Return a copy of the flat vector of parameters."""
        return self.device.array(self._flat).copy()

    def state_values(self) -> Float32:
        """Return the flat vector of buffers as the model has them now."""
        parts = [buffer.current() for buffer in self.buffers]
        return self.device.array(torch.cat(parts) if parts else torch.zeros(0)).copy()

    def trained_state(self, before: Float32) -> Float32:
        """Return the flat vector of buffers after a step that began with another one.

        Raises:
            ModelError: A buffer has counted too far.
        """
        now = self.state_values()
        for buffer, part in self._counters:
            buffer.check_counted(before[part], now[part])
        return now

    def load(self, dense: Float32, state: Float32) -> None:
        """Take the values of a step."""
        for _, (_, parameter), part in self._moved():
            parameter.data = part
        with torch.no_grad():
            self._flat.copy_(self.device.tensor(dense))
            if self.buffers:
                for buffer, part in zip(
                    self.buffers, self.device.tensor(state).split(self._sizes), strict=True
                ):
                    buffer.put(part)

    def _moved(self) -> Iterator[tuple[int, tuple[str, nn.Parameter], torch.Tensor]]:
        """Yield (offset, (name, parameter), view) of parameters that lie elsewhere now.

        A forward may move them: `flatten_parameters` of an LSTM does so on a GPU.
        """
        start = 0
        for named, part in zip(self.parameters, self._parts, strict=True):
            if named[1].data_ptr() != part.data_ptr():
                yield start, named, part
            start += part.numel()

    def kept(self) -> torch.Tensor:
        """Return a copy of the parameters, where the model is, to look for changes later."""
        return self._flat.clone()

    def changed(self, kept: torch.Tensor) -> str:
        """Return the name of a parameter that has other values than a copy; or ""."""
        if not any(self._moved()) and torch.equal(_bits(self._flat), _bits(kept)):
            return ""
        start = 0
        for name, parameter in self.parameters:
            end = start + parameter.numel()
            if not _has_values(parameter, kept[start:end].cpu().numpy()):
                return name
            start = end
        return ""

    def moved_and_changed(self, dense: Float32) -> str:
        """Return the name of a parameter that lies elsewhere and has other values; or ""."""
        for start, (name, parameter), part in self._moved():
            before = dense[start : start + part.numel()]
            if parameter.device != part.device or not _has_values(parameter, before):
                return name
        return ""

    def repeat(self, by_buffer: Sequence[float]) -> Float32:
        """Return a flat vector that has a number of each buffer in all its elements."""
        return np.repeat(np.asarray(by_buffer, np.float32), self._sizes)

    def gradient(self, of: Container[int] | None = None) -> Float32:
        """Return the gradients that a backward pass left, flat; the parameters lose them.

        A parameter without a gradient gives -0.0 all over, which no real gradient is.

        Args:
            of: The `id`s of parameters; others have none. None: all.
        """
        if not self.parameters:
            return np.zeros(0, np.float32)
        parts = []
        for _, parameter in self.parameters:
            grad, parameter.grad = parameter.grad, None
            if grad is None or (of is not None and id(parameter) not in of):
                parts.append(torch.full((parameter.numel(),), -0.0, device=parameter.device))
            elif grad.is_sparse:
                parts.append(grad.to_dense().reshape(-1) + 0.0)
            else:
                parts.append(grad.reshape(-1) + 0.0)  # makes -0.0 0.0
        return self.device.array(torch.cat(parts))

    def call(
        self, features: Nested, lookup: Lookup, training: bool, model: nn.Module | None = None
    ) -> Nested:
        """Run the model, or a function made of it; rows come from `lookup`."""
        self._set_mode(training)
        features = self.device.moved(features)
        # PyTorch counts the changes of a tensor in place in its `_version`.
        versions = [(leaf, leaf._version) for leaf in leaves(features) if _has_version(leaf)]
        elsewhere = towers_elsewhere(bool(self.towers))
        here = computed_on(self.device.torch)
        with looking_up(lookup), elsewhere, here, explaining(features):
            outputs = (model or self.model)(features)
        if any(leaf._version != version for leaf, version in versions):
            raise ModelError(
                "the model changes its input in place (an operation whose name ends with _), and "
                "a minibatch may be needed again; use the operation that returns a new tensor"
            )
        return outputs

    def _take(self, model: nn.Module) -> None:
        self.model = model
        self._modules = list(model.modules())  # of which the list takes longer than their modes
        self._modes: dict[bool, list[bool]] = {}

    def _set_mode(self, training: bool) -> None:
        """Call `train` of the model, unless all of its modules are as that has left them.

        A forward may set the mode of a part, perhaps in a trial; no later step may depend on that.
        """
        if [module.training for module in self._modules] != self._modes.get(training):
            self.model.train(training)
            self._modes[training] = [module.training for module in self._modules]

    def _meet(self, features: Nested) -> None:
        """Call the model once: lazy parameters come to be, sites are found."""
        met: list[tuple[int, torch.Tensor]] = []

        def meet(layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
            rows = trial_rows(layer, ids)
            met.append((self.table_of(layer), rows))
            return rows

        with torch.no_grad(), leaving_no_trace(self.model, None), keeping_parameters(self.model):
            self.call(features, meet, training=False)
        self.sites = tuple(table for table, _ in met)
        self.changes_rows = any(rows._version for _, rows in met)

    def given(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what a layer gives of looked up rows; the model may do with it as in PyTorch."""
        # The rows themselves are leaves of the graph. A leaf may not be changed in place, and has a
        # gradient in torch.no_grad(), too.
        if self.changes_rows:
            return rows.clone()
        return rows if torch.is_grad_enabled() else rows.detach()

    def copied(self, shares_values: bool) -> PlacedModel:
        """Return the model once more, for another thread.

        Args:
            shares_values: The parameters are these here; otherwise `load` gives it its own.

        Raises:
            ModelError: The model cannot be copied.
        """
        # deepcopy does not copy the objects in the memo. The weight of a table has no values.
        memo: dict[int, nn.Parameter] = {id(t.weight): t.weight for t in self.tables}
        if shares_values:
            memo |= {id(p): p for _, p in self.parameters}
        try:
            model = copy.deepcopy(self.model, memo)
        except Exception as error:
            raise ModelError(
                "the model cannot be copied, which is needed to look up its embeddings ahead of "
                f"the steps: copy.deepcopy raised {type(error).__name__}: {error}"
            ) from error
        other = copy.copy(self)
        other._take(model)
        if not shares_values:
            other.parameters = _dense_of(model, self._carried)
            other._flat, other._parts = _flattened([p for _, p in other.parameters], self.device)
        of_loss = tuple((name, copy.deepcopy(module)) for name, module in self._carried.of_loss)
        other._carried = replace(self._carried, of_loss=of_loss)
        other._sort_buffers()
        return other


def trial_rows(layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return rows for a step that updates nothing; the same each time.

    They are no zeros: a model may divide by the length of a row. A new id has no statistics.
    """
    shape = (*ids.shape, layer.embedding_dim)
    if isinstance(layer, StatisticsTable):
        return torch.zeros(shape, device=ids.device)
    places = torch.arange(1, math.prod(shape) + 1, device=ids.device, dtype=torch.float32)
    return 0.1 * torch.sin(places.view(shape))


@contextmanager
def explaining(features: Nested) -> Iterator[None]:
    """Turn what a model raises on a minibatch into a message that shows both sides."""
    try:
        yield
    except (ElasticdlError, Enough):
        raise
    except Exception as error:
        raise ModelError(
            f"the model cannot be called on the features that feed gives, {describe(features)}: "
            f"{type(error).__name__}: {' '.join(str(error).split())[:1000]} ({place_of(error)})"
            f"{_remedy(error, features)}"
        ) from error


def _remedy(error: Exception, features: Nested) -> str:
    """Return what to do about mistakes that many make, or ""."""
    if isinstance(error, TypeError) and "positional argument" in str(error):
        return "; forward is given one argument, all that feed returns as features"
    elsewhere = ("same device", "expected device")
    if isinstance(error, RuntimeError) and any(words in str(error) for words in elsewhere):
        return (
            "; make tensors in forward on the device of the features, and constants in __init__ "
            "by register_buffer"
        )
    if isinstance(error, ValueError) and "more than 1 value per channel" in str(error):
        return (
            "; the last minibatch of a file or task may have one record, which has no variance "
            "for batch norm: choose another --minibatch_size"
        )
    if isinstance(error, RuntimeError) and "does not require grad" in str(error):
        return "; evaluations have no gradients: compute those of forward in torch.enable_grad()"
    if isinstance(error, RuntimeError) and "a leaf Variable" in str(error):
        return "; in training alone the model changes in place what it has looked up: x = x + ..."
    doubles = (getattr(leaf, "dtype", None) == torch.float64 for leaf in leaves(features))
    if isinstance(error, RuntimeError) and "dtype" in str(error) and any(doubles):
        return '; NumPy makes float64, parameters are float32: .astype("float32") in feed'
    return ""


def check_outputs(outputs: Nested) -> None:
    """Raise if a model returns what metrics and predictions cannot be made of.

    Raises:
        ModelError: It returns an object of another kind.
    """
    for leaf in leaves(outputs):
        if leaf is not None and not isinstance(
            leaf, torch.Tensor | np.ndarray | bool | int | float
        ):
            raise ModelError(
                f"the model returns {describe(outputs)}; expected tensors, alone or in dicts, "
                "tuples and lists: an evaluation and predictions know nothing of other objects"
            )


# A BaseException passes through an `except Exception` of the user's model.
class Enough(BaseException):
    """All that a call of the model is for is known: the rest of it is left out."""


def _flattened(
    parameters: Sequence[nn.Parameter], device: Device
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Put parameters on one flat tensor; return it and a view for each parameter."""
    sizes = [int(p.numel()) for p in parameters]
    # One tensor holds all parameters, so a single copy loads the values of a step.
    flat, parts = torch.empty(sum(sizes), device=device.torch), []
    with torch.no_grad():
        for parameter, part in zip(parameters, flat.split(sizes) if sizes else (), strict=True):
            part.copy_(parameter.reshape(-1))
            parameter.data = part.view(parameter.shape)
            parts.append(parameter.data)
    return flat, parts


def _bits(flat: torch.Tensor) -> torch.Tensor:
    """Return the bits of floats as whole numbers, so that NaN equals itself."""
    return flat.view(torch.int32)


def _has_values(parameter: nn.Parameter, values: Float32) -> bool:
    now = parameter.detach().reshape(-1).cpu().numpy()
    return np.array_equal(now, values, equal_nan=True)


def _dense_of(model: nn.Module, carried: UntrainedState) -> list[tuple[str, nn.Parameter]]:
    return [
        (name, p)
        for name, p in model.named_parameters()
        if not isinstance(p, TableParameter) and name not in carried.parameters
    ]


def _refuse_common_memory(parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Refuse two parameters that share memory, so that one changes with the other.

    Raises:
        ModelError: Names both.
    """
    placed = sorted(
        ((p.untyped_storage().data_ptr(), p.storage_offset(), name, p) for name, p in parameters),
        key=lambda one: one[:2],
    )
    for k, (storage, start, one, a) in enumerate(placed):
        last = start + sum((n - 1) * step for n, step in zip(a.shape, a.stride(), strict=True))
        for its_storage, begin, other, b in itertools.islice(placed, k + 1, None):
            if its_storage != storage or begin > last:
                break
            # Views of one storage may interleave without a common element. Only a change shows it.
            if a.numel() and b.numel() and _changes_with(b, a):
                raise ModelError(
                    f"parameters {one!r} and {other!r} have memory in common, as after "
                    "`b.data = a.data`: each is updated for itself here. Let both modules have "
                    "one parameter (b.weight = a.weight), or give each its own by .clone()"
                )


def _changes_with(parameter: nn.Parameter, other: nn.Parameter) -> bool:
    before, held = parameter.detach().clone(), other.detach().clone()
    other.detach().add_(1.0)
    changes = not torch.equal(parameter.detach(), before)
    other.detach().copy_(held)
    return changes


def _has_version(leaf: torch.Tensor) -> bool:
    return isinstance(leaf, torch.Tensor) and not leaf.is_inference()
