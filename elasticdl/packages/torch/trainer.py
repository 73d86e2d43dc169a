"""A user's PyTorch model, one step on one minibatch at a time.

`feed` makes minibatches of records, `model` has the parameters, `lookups` finds the ids that the
model looks up, `optimizer` reads the optimizer, `metrics` evaluates, `export` writes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from elasticdl.backends.average import EvaluationLoss
from elasticdl.backends.base import (
    Float32,
    Minibatch,
    ModelDescription,
    OptimizerSpec,
    TableSource,
)
from elasticdl.backends.exported import may_be_loaded
from elasticdl.data.base import Metadata
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.job import Mode
from elasticdl.model_spec import ModelSpec
from elasticdl.packages.frameworks.job_callbacks import JobCallbacks, scheduled_rate
from elasticdl.packages.frameworks.model_notes import of_endless, of_frozen, of_scheduler
from elasticdl.packages.frameworks.parts import ComposedTrainer, Parts
from elasticdl.packages.torch.callbacks import job_callbacks
from elasticdl.packages.torch.compiled import CompiledStep
from elasticdl.packages.torch.device import Device, from_numpy
from elasticdl.packages.torch.export import ask, check_export, export_model
from elasticdl.packages.torch.export_beside import export_beside, make_programs
from elasticdl.packages.torch.feed import Feed, TorchMinibatch
from elasticdl.packages.torch.lookups import GivenRows, TorchLookups
from elasticdl.packages.torch.loss import MinibatchLoss, object_of
from elasticdl.packages.torch.metrics import Metrics
from elasticdl.packages.torch.model import Lookup as RowLookup
from elasticdl.packages.torch.model import PlacedModel, TowerOutputs, check_outputs, trial_rows
from elasticdl.packages.torch.optimizer import (
    FixedRate,
    Rules,
    ScheduledRate,
    check_apart,
    read_rules,
)
from elasticdl.packages.torch.state import find_momenta, looked_up
from elasticdl.packages.torch.step import TorchEvaluation, TorchStep
from elasticdl.packages.torch.structures import as_array
from elasticdl.packages.torch.towers import TorchTower, towers_of
from elasticdl.packages.torch.trial import (
    FixedParameters,
    UntrainedState,
    check_history,
    find_carried,
    leaving_no_trace,
    modules_of,
)


class TorchExporter:
    """The `Exporter` of a PyTorch model.

    Args:
        placed: The model.
        sample: A minibatch of it.
        staged: Whether ids depend on rows or parameters.
    """

    def __init__(self, placed: PlacedModel, sample: TorchMinibatch, staged: bool) -> None:
        self._placed = placed
        self._sample = sample
        self._staged = staged

    def check(self, beside: bool) -> None:
        """Look whether the model can be exported; see `ChecksExport`."""
        check_export(self._placed.model)
        if beside:
            with self._placed.on_cpu():
                make_programs(self._placed, self._sample, self._staged)

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write the model; see `Trainer.export`."""
        self._placed.load(dense, state)
        with self._placed.on_cpu():
            if tables is None:
                export_beside(self._placed, self._sample, self._staged, directory)
            else:
                export_model(self._placed, self._sample, directory, tables)
                if may_be_loaded(directory):
                    ask(self._placed, self._sample, directory)


log = logging.getLogger(__name__)
_CPU = Device()


class TorchTrainer(ComposedTrainer):
    """A `Trainer` for a `torch.nn.Module`.

    Args:
        spec: The functions of the user's model file.
        model: The result of the model function, called with a lookup in force.
        metadata: The description of the data, for `feed`.
        seed: The seed of the initial values.
        run_eagerly: Rows are looked up one layer after the other, each with its real ids.
        is_compiled: Training steps are compiled by `torch.compile`, without `run_eagerly`.
        device: The device that computes the steps.
    """

    def __init__(
        self,
        spec: ModelSpec,
        model: nn.Module,
        metadata: Metadata,
        seed: int,
        run_eagerly: bool = False,
        is_compiled: bool = False,
        device: Device = _CPU,
    ) -> None:
        if spec.weighted_metrics_fn is not None:
            raise ModelError(
                "weighted_metrics_fn is for Keras models: put sample weights beside the labels, "
                "in a dict, and weigh in eval_metrics_fn"
            )
        super().__init__(Feed(spec.feed, metadata), run_eagerly)
        spec = replace(spec, loss=object_of(spec.loss, "loss"))
        self._spec = spec
        self._model = model
        self._seed = seed
        self._staged = run_eagerly
        self._metrics = Metrics(spec.eval_metrics_fn, spec.tell)
        loss = spec.loss
        self._loss = MinibatchLoss(loss, device, spec.tell) if loss is not None else None
        self._is_compiled = is_compiled
        self._device = device
        self._compiled: CompiledStep | None = None
        self._callbacks: JobCallbacks | None = None
        self._has_schedule = False
        self._evaluation_loss = EvaluationLoss()
        self._momenta: list[float] = []
        self._rate: Callable[[int], float] = lambda version: 0.0
        self._unused: dict[int, str] = {}  # parameters without a gradient at first, by `id`
        self._clipped: Container[int] | None = None  # `id`s of parameters under a common norm

    def _build(self, sample: Minibatch) -> Parts:
        minibatch = TorchMinibatch.of(sample)
        # Lazy layers draw their initial values in the first call, which `PlacedModel` makes.
        torch.manual_seed(self._seed)
        self._fixed = FixedParameters(self._model)
        self._placed = PlacedModel(self._model, minibatch.features)
        self._fixed.check(self._model.named_parameters())
        self._sample = minibatch
        is_trained = minibatch.mode is Mode.TRAINING
        if is_trained:
            self._find_carried(minibatch)
        else:
            self._find_carried_before(minibatch)
        # The collector copies the model while it is on the CPU, so the model moves afterwards.
        self._lookups = TorchLookups(self._placed, self._staged, self._device)
        self._placed.move(self._device)
        self._momenta = [1.0] * len(self._placed.buffers)
        rules = self._read_optimizer()
        if is_trained:
            with leaving_no_trace(self._model, self._spec.loss):
                self._try_out(minibatch, rules)
        description = self._describe(rules)
        if is_trained:
            state = self._placed.state_values()
            for told in (*of_frozen(description.tables), *of_endless(description.state, state)):
                self._spec.tell(told)
        return self._parts_of(description)

    def _parts_of(self, description: ModelDescription) -> Parts:
        placed = self._placed
        step = TorchStep(
            placed, self._loss, self._momenta, self._fixed, self._clipped, self._compiled
        )
        # The loss of an evaluation is computed on the CPU, where its predictions are.
        on_cpu = None if self._spec.loss is None else MinibatchLoss(self._spec.loss)
        return Parts(
            description=description,
            values=placed,
            lookups=self._lookups,
            step=step,
            evaluation=TorchEvaluation(self._metrics, self._evaluation_loss, on_cpu, step),
            exporter=TorchExporter(placed, self._sample, self._staged),
            rate=self._rate,
            has_schedule=self._has_schedule,
            callbacks=self._callbacks,
        )

    def _find_carried(self, minibatch: TorchMinibatch) -> None:
        """Take a first step, on the CPU, to find the values that must be carried beside buffers."""
        if self._spec.loss is None:
            raise ModelError(
                "training needs a function loss(labels, predictions) in the model file; found none"
            )
        loss, placed = MinibatchLoss(self._spec.loss), self._placed
        dense, state = placed.dense_values(), placed.state_values()
        carried = find_carried(self._model, loss.function, lambda: self._step(minibatch, loss))
        self._unused = {id(p): name for name, p in placed.parameters if p.grad is None}
        placed.gradient()
        placed.load(dense, state)
        self._carry(carried)

    def _carry(self, carried: UntrainedState) -> None:
        if not self._device.is_cpu and self._loss is not None:  # it has a loss of its own there
            names = {name for name, _ in carried.of_loss}
            there = modules_of(self._loss.function, self._model)
            of_loss = tuple((name, module) for name, module in there if name in names)
            carried = replace(carried, of_loss=of_loss)
        self._placed.carry(carried)

    def _find_carried_before(self, minibatch: TorchMinibatch) -> None:
        """Find the values that training has carried, which a checkpoint has as state."""
        loss = None if self._spec.loss is None else MinibatchLoss(self._spec.loss)

        def step() -> None:
            self._change_state(minibatch, loss)

        # A model may want more for its training than feed gives here.
        with contextlib.suppress(ModelError):
            function = None if loss is None else loss.function
            self._carry(find_carried(self._model, function, step))

    def _step(self, minibatch: TorchMinibatch, loss: MinibatchLoss) -> torch.Tensor:
        """Take a step that updates nothing; return its loss."""
        placed = self._placed
        placed.device.seed(minibatch.seed)
        outputs = placed.call(minibatch.features, _grown(placed), training=True)
        check_outputs(outputs)
        value = loss(placed.device.moved(minibatch.labels), outputs)
        loss.differentiate(value)
        return value

    def _read_optimizer(self) -> Rules:
        placed = self._placed
        weights = [table.weight for table in placed.tables if not table.has_statistics]
        if self._spec.optimizer is None:
            sgd = OptimizerSpec("torch_sgd")
            every = [*weights, *(p for _, p in placed.parameters)]
            return Rules(sgd, {id(parameter): sgd for parameter in every}, lambda version: 0.0)
        rules = read_rules(self._spec.optimizer, placed.parameters, weights)
        # A norm to clip by is that of the optimizer's parameters alone.
        self._clipped = None if rules.clip is None else rules.of.keys()
        self._rate = scheduled_rate(self._spec.callbacks, self._spec.tell) or rules.rate
        self._has_schedule = not isinstance(self._rate, FixedRate)
        if isinstance(self._rate, ScheduledRate):
            self._spec.tell(of_scheduler(self._rate.name))
        self._read_callbacks()
        return rules

    def _read_callbacks(self) -> None:
        fixed = self._rate.value if isinstance(self._rate, FixedRate) else None
        directions = self._metrics.directions()
        self._callbacks = job_callbacks(self._spec.callbacks, fixed, directions)
        if self._callbacks is None:
            return
        has_own = EvaluationLoss.NAME in directions
        watches_loss = self._callbacks.needs.watches_loss
        self._evaluation_loss = EvaluationLoss(watches_loss and not has_own)

    def _try_out(self, minibatch: TorchMinibatch, rules: Rules) -> None:
        """Take steps that change nothing, so that a fault is found now, before the job begins."""
        placed, loss = self._placed, self._loss
        assert loss is not None, "a training without one has been refused"
        dense, state = placed.dense_values(), placed.state_values()
        if not self._staged:
            self._lookups.refuse_staged(minibatch)

        def step(one: TorchMinibatch) -> tuple[Array, Array]:
            placed.load(dense, state)
            value = self._step(one, loss)
            for constant in placed.constants:
                constant.check()
            return as_array(value), placed.gradient()

        self._fixed.check(self._model.named_parameters())
        check_history(self._model, loss.function, minibatch, step)
        if rules.optimizer is not None:
            changes = self._has_schedule or self._spec.callbacks is not None
            check_apart(rules.optimizer, changes, lambda: float(step(minibatch)[0]))
        self._momenta = find_momenta(
            placed, minibatch, lambda one: self._change_state(one, loss), state
        )
        unused = [
            name
            for name, p in placed.parameters
            if id(p) in self._unused and p.requires_grad and id(p) in rules.of
        ]
        if unused:
            log.warning(
                "with the first minibatch the loss does not depend on %s: a parameter rests with "
                "each minibatch that leaves it without a gradient",
                ", ".join(unused),
            )
        if self._is_compiled:
            self._compile(minibatch, loss, float(step(minibatch)[0]))
            placed.gradient()
        placed.load(dense, state)

    def _change_state(self, minibatch: TorchMinibatch, loss: MinibatchLoss | None) -> None:
        """Do what a step does to buffers."""
        placed = self._placed
        placed.device.seed(minibatch.seed)
        with torch.no_grad():
            outputs = placed.call(minibatch.features, looked_up(placed), training=True)
            if loss is None:
                return
            # Without labels, predictions take their place: only what changes is asked.
            labels = outputs if minibatch.mode is Mode.PREDICTION else minibatch.labels
            try:
                loss.value(placed.device.moved(labels), outputs)
            except ModelError:  # it refuses what the model makes of a state that is tried out
                if placed.has_state_of_loss:
                    raise

    def _compile(self, minibatch: TorchMinibatch, loss: MinibatchLoss, expected: float) -> None:
        """Compile before any lease is held: a model that cannot be compiled ends the job here."""
        ids, tables = self._lookups.ids(minibatch), self._placed.tables
        layers = [tables[table].layer for table in self._placed.sites]
        rows = [
            as_array(trial_rows(layer, from_numpy(of_site)))
            for layer, of_site in zip(layers, ids, strict=True)
        ]
        self._compiled = CompiledStep(self._placed, loss)
        self._placed.device.seed(minibatch.seed)
        given = GivenRows(self._placed, minibatch, rows, grad=True)
        self._compiled.try_out(minibatch, given, expected)

    def _describe(self, rules: Rules) -> ModelDescription:
        placed = self._placed

        def is_trained(number: int) -> bool:
            parameter = placed.parameters[number][1]
            return parameter.requires_grad and id(parameter) in rules.of

        return ModelDescription(
            tables=tuple(
                table.describe(
                    rules.of.get(id(table.weight), rules.dense),
                    id(table.weight) in rules.of,
                    rules.rate_of(table.weight),
                )
                for table in placed.tables
            ),
            dense=placed.describe_dense(is_trained, rules),
            state=placed.describe_state(self._momenta),
            optimizer=rules.dense,
            seed=self._seed,
            clip=rules.clip,
        )

    def towers(self) -> Sequence[TorchTower]:
        """Return the towers of the model; see `HasTowers`."""
        return towers_of(self._placed, self._clipped)

    def place_towers(self) -> None:
        """Look up what towers give from now on; see `HasTowers`."""
        placed, minibatch = self._placed, self._sample
        within = {id(p) for remote in placed.remotes() for p in remote.parameters()}
        dense, state = placed.dense_values(), placed.state_values()
        outputs = [TowerOutputs(tower.name, tower.dim) for tower in self.towers()]
        placed.place_towers(outputs, minibatch.features)
        self._lookups.begin_again()
        if self._loss is None or minibatch.mode is not Mode.TRAINING:
            return
        self._lookups.refuse_staged(minibatch)
        with leaving_no_trace(self._model, self._spec.loss):
            self._step(minibatch, self._loss)
        shared = [name for name, p in placed.parameters if id(p) in within and p.grad is not None]
        placed.gradient()
        placed.load(dense, state)
        if shared:
            raise ModelError(
                f"parameter {shared[0]!r} is of a tower in elasticdl.layers.torch.Remote, and the "
                "model uses it outside of the tower, too: with --num_model_servers a tower has its "
                "parameters for itself"
            )


def _grown(placed: PlacedModel) -> RowLookup:
    """Return a lookup whose rows have gradients, like the rows of a step."""
    lookup = looked_up(placed)

    def look_up(layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return placed.given(lookup(layer, ids).requires_grad_())

    return look_up
