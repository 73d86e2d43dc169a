"""The seam between the worker's loop and a framework: one minibatch in, gradients out.

A backend knows nothing of tasks, processes or the store. It turns raw records into minibatches,
tells which embedding ids a minibatch needs, and computes on the rows that it is given.

Dense parameters cross this seam as **one flat float32 vector** (all trainable variables, in the
backend's order), and so do state variables (moving statistics and the like: everything that
the forward pass updates and that evaluation reads). The store splits both by bytes and need not
know the variables; `ModelDescription.dense` and `.state` name them for checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.base import Records
from elasticdl.data.strings import Array
from elasticdl.errors import ModelError
from elasticdl.job import CallbackCall, CallbackResult, MetricStates, Mode
from elasticdl.layers.life_cycle import (
    Admission,
    CountAdmission,
    Expiry,
    ProbabilityAdmission,
    StatisticAdmission,
)
from elasticdl.layers.row_statistics import RowStatistics
from elasticdl.optimizers.program import Program

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

# What passes between a user's functions, and is looked into by one framework alone.
Features: TypeAlias = object
"""What `feed` makes of records for the model: tensors or arrays, in tuples, lists and dicts."""
Labels: TypeAlias = object
"""What `feed` makes of records for the loss, likewise; None in predictions."""
Predictions: TypeAlias = object
"""What a model gives for features, likewise; from `predict_step` on in arrays."""


@dataclass(frozen=True, slots=True)
class FeedWay:
    """Which way records go through `feed`, and why, for whoever looks at the job.

    is_slow: It is not the fastest, so the log of the process warns of it.
    """

    text: str
    is_slow: bool


TellFeedWay = Callable[[FeedWay], object]
"""Is called once for each way that is new, and may be called when the job is long under way."""


def tell_nobody(way: FeedWay) -> None:
    """Tell nobody which way `feed` runs; it is in the log."""


@dataclass(frozen=True, slots=True)
class Initializer:
    """How a row is filled when it is first used: a function of (seed, table, key) alone.

    kind: "constant" (value), "uniform" (low, high), "normal" (mean, stddev),
    "truncated_normal" (mean, stddev; two standard deviations).
    """

    kind: str
    params: dict[str, float] = field(default_factory=dict)

    @property
    def centre(self) -> float:
        """What a row that was never trained reads as in an evaluation or an export."""
        match self.kind:
            case "constant":
                return self.params["value"]
            case "uniform":
                return (self.params["low"] + self.params["high"]) / 2
            case _:
                return self.params["mean"]


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """An optimizer as the store applies it, settings read from the user's object.

    kind and params (floats; flags are 0.0 / 1.0): "sgd" (), "momentum" (momentum, nesterov),
    "adagrad" (epsilon, initial_accumulator), "adadelta" (rho, epsilon), "adam" and "adamw" (beta_1,
    beta_2, epsilon, amsgrad), "nadam" and "adamax" (beta_1, beta_2, epsilon), "lion" (beta_1,
    beta_2), "schedule_free_adamw" (beta_1, beta_2, epsilon, warmup_steps), "rmsprop" (rho,
    momentum, epsilon, centered), "ftrl" (learning_rate_power, initial_accumulator, l1, l2,
    l2_shrinkage, beta),
    "group_ftrl" (ftrl's without the power, and l21: group lasso over a table's row); each with
    weight_decay, decoupled from the gradient (0.004 of "adamw", else 0). With
    PyTorch's formulas and defaults: "torch_sgd" (momentum, dampening, nesterov, weight_decay),
    "torch_adagrad" (lr_decay, epsilon, initial_accumulator, weight_decay), "torch_adam" and
    "torch_adamw" (beta_1, beta_2, epsilon, amsgrad, weight_decay), "torch_rmsprop" (alpha,
    momentum, epsilon, centered, weight_decay).
    The learning rate travels with each push. "own" (weight_decay) has a rule of the user's own, the
    program.
    """

    kind: str
    params: dict[str, float] = field(default_factory=dict)
    program: Program | None = None


@dataclass(frozen=True, slots=True)
class AdmissionSpec:
    """When an id gets a row, as the store decides it.

    kind and params: "count" (count), "sketch" (count, bytes), "probability" (probability),
    "statistic" (table, column, limit).
    """

    kind: str
    params: dict[str, float]

    @classmethod
    def of(
        cls, admission: Admission | None, kept: KeptStatistics | None = None
    ) -> AdmissionSpec | None:
        """Return what a layer or table says; None admits every id with its first use.

        Raises:
            ModelError: It goes by a statistic that is not kept.
        """
        match admission:
            case None:
                return None
            case CountAdmission(count, None):
                return cls("count", {"count": float(count)})
            case CountAdmission(count, sketch_bytes):
                return cls("sketch", {"count": float(count), "bytes": float(sketch_bytes or 0)})
            case ProbabilityAdmission(probability):
                return cls("probability", {"probability": float(probability)})
            case StatisticAdmission(name, at_least):
                found = _kept(kept, name, at_least, "StatisticAdmission")
                return cls("statistic", {k: float(v) for k, v in asdict(found).items()})


@dataclass(frozen=True, slots=True)
class StatisticSpec:
    """A statistic of an id: the table that has it, which of its floats it is, and a limit."""

    table: int
    column: int
    limit: float


@dataclass(frozen=True, slots=True)
class KeptStatistics:
    """The statistics of a table's ids, and the number of the table that has them."""

    table: int
    said: RowStatistics


def _kept(kept: KeptStatistics | None, name: str, limit: float, whose: str) -> StatisticSpec:
    if kept is None:
        raise ModelError(
            f"{whose} goes by the statistic {name!r}; say statistics=RowStatistics(...) beside it"
        )
    return StatisticSpec(kept.table, kept.said.column(name, whose), float(limit))


@dataclass(frozen=True, slots=True)
class ExpirySpec:
    """When a row goes, as the store decides it; see `Expiry`."""

    steps: int | None = None
    days: float | None = None
    min_norm: float | None = None
    grace_steps: int = 0
    statistic: StatisticSpec | None = None

    @classmethod
    def of(cls, expiry: Expiry | None, kept: KeptStatistics | None) -> ExpirySpec | None:
        """Return what a layer or table says; None lets no row go.

        Raises:
            ModelError: It goes by a statistic that is not kept.
        """
        if expiry is None:
            return None
        statistic = None
        if expiry.statistic is not None and expiry.below is not None:
            statistic = _kept(kept, expiry.statistic, expiry.below, "Expiry")
        return cls(expiry.steps, expiry.days, expiry.min_norm, expiry.grace_steps, statistic)


@dataclass(frozen=True, slots=True)
class StatisticsSpec:
    """What the store and those who push must know of statistics; see `RowStatistics`."""

    decay: float
    steps: int

    def period(self, step: int) -> int:
        """Return the period of the minibatch at a place in the order of the job."""
        return step // self.steps


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """What weights are held to after each update, as the store does it.

    kind and params: "non_neg" (); of a table's row also "norm" (min, max, rate, epsilon), the L2
    norm of the row as Keras' `MinMaxNorm` holds it.
    """

    kind: str
    params: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableDescription:
    """An embedding table. `input_dim` is None where ids are any 64-bit number.

    keep_names: whether the strings that ids were made of are kept, for `Trainer.names`.
    trainable: whether rows are updated. They are created, read and kept all the same.
    given_rows: whether every key begins with a row of `Trainer.given_rows`.
    rate: what the learning rate is multiplied by.
    statistics: rows are decayed sums, the last float the period that they are decayed to. What a
        step gives as their gradient is what it adds, without the period.
    wire_dtype: how rows and gradients travel, "float32", "float16" or "bfloat16"; they are stored,
        and updates are computed, in float32.
    """

    name: str
    dim: int
    initializer: Initializer
    optimizer: OptimizerSpec
    input_dim: int | None = None
    wire_dtype: str = "float32"
    admission: AdmissionSpec | None = None
    expiry: ExpirySpec | None = None
    keep_names: bool = False
    constraint: ConstraintSpec | None = None
    trainable: bool = True
    given_rows: bool = False
    rate: float = 1.0
    statistics: StatisticsSpec | None = None

    @classmethod
    def of_statistics(
        cls, name: str, kept: KeptStatistics, expiry: Expiry | None
    ) -> TableDescription:
        """Describe the table that has the statistics of a table whose rows have this expiry.

        An id that has no row any more needs no statistics, but for one that has gone for its norm.
        """
        of_rows = ExpirySpec.of(expiry, kept)
        if of_rows is not None:
            of_rows = replace(of_rows, min_norm=None, grace_steps=0)
        is_forever = of_rows is None or of_rows == ExpirySpec()
        return cls(
            name,
            kept.said.table_dim,
            Initializer("constant", {"value": 0.0}),
            OptimizerSpec("sgd"),  # which is not applied
            expiry=None if is_forever else of_rows,
            statistics=StatisticsSpec(float(kept.said.decay), kept.said.decay_steps),
        )


@dataclass(frozen=True, slots=True)
class VariableDescription:
    """Where a variable lies in the flat dense or state vector, in elements.

    trainable: whether the loss has a gradient for a dense variable. What has none keeps its value
        under every optimizer. Whether training changes a state variable.
    momentum: a minibatch makes a state variable `momentum * old + change`; 1 where changes add up,
        0 where the value is replaced.
    decays, constraint: whether the optimizer's weight decay is for a dense variable too, and what
        its elements are held to.
    optimizer, rate: of a dense variable, if it has other settings than the model's, and what the
        learning rate is multiplied by.
    may_rest: a gradient of a dense variable that is -0.0 all over, which adds nothing to any other,
        says that there is none. Then the variable rests, and its optimizer does not count the
        update.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    decays: bool = True
    constraint: ConstraintSpec | None = None
    trainable: bool = True
    momentum: float = 1.0
    optimizer: OptimizerSpec | None = None
    rate: float = 1.0
    may_rest: bool = False


@dataclass(frozen=True, slots=True)
class ClipSpec:
    """How the gradient of a minibatch is clipped, gradients of equal ids summed.

    kind: "norm" (the L2 norm of each table's rows, and of each dense variable, is at most
    `limit`), "global_norm" (that of all together) or "value" (each element).
    """

    kind: str
    limit: float


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """All that the store must know of a model; equal in every worker of a job."""

    tables: tuple[TableDescription, ...]
    dense: tuple[VariableDescription, ...]
    state: tuple[VariableDescription, ...]
    optimizer: OptimizerSpec
    seed: int
    clip: ClipSpec | None = None


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Features and labels as the backend likes them; opaque to the loop.

    num_records: rows of features and labels; of a `feed` that leaves records out, or makes several
        examples of one, those that it gave.
    record_numbers: in PREDICTION, the number in its source of the record that each row is of.
    """

    features: Features
    labels: Labels
    num_records: int
    record_numbers: Int64 | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one training step yields.

    row_grads: for each id site, the gradient of the rows it was given, same shape as those; of a
    table of statistics what each occurrence adds to the sums, shape `ids.shape + (dim - 1,)`.
    dense_grad: gradient of the flat dense vector. state_delta: what is added to `momentum` times
    the state; where momentum is 1, the new state minus the state given. `change_of` makes it.
    loss: mean over the minibatch. predictions: for `Trainer.measure`, as the backend likes them.
    """

    loss: float
    row_grads: Sequence[Float32]
    dense_grad: Float32
    state_delta: Float32
    predictions: Predictions = None


def change_of(new: Any, old: Any, momentum: Any, xp: Any = np) -> Any:
    """Return the `state_delta` that makes a new state of an old one, each with its momentum.

    Infinity minus infinity is no number. So of what is replaced the change is the new value, and
    what stays infinite has none. Of what was infinite and is something else now there is no change
    that can be added: it is NaN, which the worker refuses.

    Args:
        new: float32, as old and momentum, which have its shape.
        old: What it was before the step.
        momentum: By which what holds the state multiplies the old one; 0: it is replaced.
        xp: NumPy, or what does as NumPy does with such tensors.
    """
    was_infinite = xp.isinf(old)
    with np.errstate(invalid="ignore", over="ignore"):
        change = new - momentum * old
    change = xp.where(was_infinite, xp.full_like(old, np.nan), change)
    change = xp.where(was_infinite & (new == old), xp.zeros_like(old), change)
    return xp.where(momentum == 0.0, new, change)


@runtime_checkable
class ChecksData(Protocol):
    """A trainer that can tell, once it is built, what its model expects of the data."""

    def vocabularies(self) -> Mapping[str, Sequence[str]]:
        """Return the words of features that have ids of their own, as far as the model shows."""
        ...

    def problem_of_labels(self, labels: Array) -> str:
        """Say which label it is, and what there is; "" if nothing is wrong, or it is not seen."""
        ...


@runtime_checkable
class ChecksExport(Protocol):
    """A trainer that can tell, once it is built, what its export would fail by."""

    def check_export(self, beside: bool) -> None:
        """Look whether the model can be exported, as far as that takes seconds.

        Args:
            beside: Whether the rows lie beside the model.

        Raises:
            ModelError: It cannot.
        """
        ...


class Tower(Protocol):
    """A part of a model that turns ids into vectors, each id for itself.

    Methods may be called from one thread only.

    Attributes:
        name: Of the layer.
        dim: Width of what it gives.
        dense: Where its variables lie in the flat dense vector of the model, in their order.
        tables: The table of each of its id sites.
    """

    name: str
    dim: int
    dense: Sequence[slice]
    tables: Sequence[int]

    def ids(self, ids: Int64) -> Sequence[Int64]:
        """Return the ids that each of its sites looks up for ids of shape (n,)."""
        ...

    def forward(
        self, ids: Int64, rows: Sequence[Float32], dense: Float32, training: bool
    ) -> Float32:
        """Return what it gives, shape (n, dim).

        Args:
            ids: Shape (n,).
            rows: Of each site, in the order of its ids.
            dense: Its own variables, one after the other.
            training: Whether it is trained.
        """
        ...

    def backward(
        self, ids: Int64, gradients: Float32, rows: Sequence[Float32], dense: Float32
    ) -> tuple[Sequence[Float32], Float32]:
        """Return the gradient of the rows of each site and of its own variables.

        Args:
            ids: Shape (n,).
            gradients: Of what it gave for them, shape (n, dim).
            rows: As in `forward`.
            dense: The same.
        """
        ...


@runtime_checkable
class HasTowers(Protocol):
    """A trainer of a model whose towers may be computed elsewhere, once it is built."""

    def towers(self) -> Sequence[Tower]:
        """Return the towers of the model.

        Raises:
            ModelError: A tower cannot be computed elsewhere.
        """
        ...

    def place_towers(self) -> None:
        """Look up what towers give from now on, as rows are.

        `id_sites` then has sites whose number is beyond the tables: number `len(tables) + k` is
        tower k.

        Raises:
            ModelError: The rest of the model needs what is inside of a tower.
        """
        ...


class Pulled(Protocol):
    """What a lookup brings: the rows of each site, and the dense and state vectors."""

    @property
    def rows(self) -> Sequence[Float32]:
        """The rows of each site, in the order of its ids."""
        ...

    @property
    def dense(self) -> Float32:
        """The vector of the dense parameters."""
        ...

    @property
    def state(self) -> Float32:
        """The vector of the state."""
        ...


class Lookup(Protocol):
    """Fetches rows in the middle of a step: `PsClient.pull`."""

    def __call__(self, sites: Sequence[tuple[int, Int64]], training: bool) -> Pulled:
        """Return the rows for (table, ids) of each site, and the vectors."""
        ...


@dataclass(frozen=True, slots=True)
class CallbackNeeds:
    """What callbacks need of the job.

    watches: names one that waits for evaluations, or is "". watches_loss: one waits for the loss of
    evaluations. namespace: The globals of the model file: a change of them is of one process alone.
    """

    watches: str
    watches_loss: bool = False
    namespace: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)


class Predictor(Protocol):
    """One model in one framework, as far as evaluation and prediction use it.

    An **id site** is one place of the model where an embedding table is looked up. `ids` gives
    the ids of every site, always in the same order; `rows` given to a step have the same order,
    each of shape `ids.shape + (dim,)`, float32, C-contiguous.
    Methods may be called from different threads, but a step from one only.

    Attributes:
        ids_need_parameters: `ids` reads the parameters as they are then. In training it is called
            when no update of this worker is under way.
    """

    ids_need_parameters: bool

    def minibatches(
        self, records: Iterator[Records], mode: Mode, minibatch_size: int, seed: int
    ) -> Iterator[Minibatch]:
        """Run the user's `feed` over the records of one task.

        The same records, mode, size and seed give the same minibatches in the same order, in
        any process. `seed` also drives `shuffle`.

        Raises:
            ModelError: `feed` raised or gave something unusable.
            DataError: A record does not parse.
        """
        ...

    def ids(self, minibatch: Minibatch) -> Sequence[Int64]:
        """Return the ids that each site looks up for a minibatch, of any shape.

        A model that brings its own tables has no sites.
        """
        ...

    def new_metrics(self) -> None:
        """Start an evaluation with empty metrics."""
        ...

    def evaluate_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> None:
        """Add a minibatch to the metrics."""
        ...

    def metric_states(self) -> MetricStates:
        """Return what was gathered since `new_metrics`, to be added over workers."""
        ...

    def metric_results(self, states: MetricStates) -> dict[str, float]:
        """Compute the metrics from merged states."""
        ...

    def predict_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> Predictions:
        """Return the model's outputs, as an array or (named) structure of arrays."""
        ...


class Trainer(Predictor, Protocol):
    """A model whose parameters lie elsewhere: it is built, described, trained and exported.

    Attributes:
        callbacks: What the job is to do for callbacks of the model file, if it has any that it is
            to call. Known after `build`.
        has_schedule: The learning rate follows the model's version, and callbacks cannot set it.
            Known after `build`.
    """

    callbacks: CallbackNeeds | None
    has_schedule: bool

    def build(self, sample: Minibatch) -> ModelDescription:
        """Build the model's variables from a first minibatch and describe it. Called once."""
        ...

    def initial_values(self) -> tuple[Float32, Float32]:
        """Return the flat dense and state vectors as initialised here."""
        ...

    def given_rows(self) -> Sequence[tuple[int, Float32]]:
        """Return the tables that begin with rows which the model file sets, and the rows.

        Shape (input_dim, dim) each; of those tables that are described with `given_rows`.
        """
        ...

    def set_lookup(self, pull: Lookup) -> None:
        """Give the lookup that models need whose ids depend on parameters. Called after `build`."""
        ...

    def id_sites(self) -> Sequence[int]:
        """Return, for each id site, the index of its table in `ModelDescription.tables`."""
        ...

    def names(self, minibatch: Minibatch, sites: Sequence[int]) -> Sequence[Sequence[str]]:
        """Return the strings of which the ids of some sites were made, in the order of `ids`.

        Asked for the sites of tables with `keep_names` alone.

        Raises:
            ModelError: The ids of a site are not made of strings.
        """
        ...

    def learning_rate(self, version: int) -> float:
        """Return the learning rate for a step from model version `version` (its schedule)."""
        ...

    def train_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> StepResult:
        """Compute loss and gradients; updates nothing that outlives the call."""
        ...

    def measure(self, minibatches: Sequence[Minibatch], predictions: Sequence[Predictions]) -> None:
        """Add minibatches to the metrics, given the predictions of their `StepResult`s."""
        ...

    def run_callbacks(self, call: CallbackCall) -> CallbackResult:
        """Call the user's callbacks, made anew and given what they remembered.

        Raises:
            ModelError: One raised, or remembers what JSON does not know.
        """
        ...

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write a model that serves without elasticdl into `directory` (which exists, empty).

        Without `tables` their rows lie beside it, as Parquet; `docs/serving.md` says what is there.
        """
        ...


class TableSource(Protocol):
    """Access to whole tables, for `Trainer.export`."""

    def scan(self, table: int) -> Iterator[tuple[Int64, Float32]]:
        """Yield (keys (n,), rows (n, dim)) until every trained row of the table was seen once."""
        ...
