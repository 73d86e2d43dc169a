"""The seam between the worker's loop and a framework: one minibatch in, gradients out.

A backend knows nothing of tasks, processes or the store. It turns raw records into minibatches,
tells which embedding ids a minibatch needs, and computes on the rows that it is given.

Dense parameters cross this seam as **one flat float32 vector**: all trainable variables, in the
backend's order. State variables (such as moving statistics) cross in a second flat vector. The
forward pass updates them, and evaluation reads them. The store splits both by bytes and need not
know the variables; `ModelDescription.dense` and `.state` name them for checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.base import Records
from elasticdl.data.strings import Array
from elasticdl.job import CallbackCall, CallbackResult, MetricStates, Mode
from elasticdl.layers.life_cycle import Expiry
from elasticdl.layers.row_rules import AdmissionSpec, ExpirySpec, KeptStatistics, StatisticsSpec
from elasticdl.optimizers.program import Program

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]

# These values pass between a user's functions. Only the backend of their framework looks into
# them, so the seam has no narrower type for them.
Features: TypeAlias = object
"""What `feed` makes of records for the model: tensors or arrays, in tuples, lists and dicts."""
Labels: TypeAlias = object
"""What `feed` makes of records for the loss, likewise; None in predictions."""
Predictions: TypeAlias = object
"""What a model gives for features, likewise; from `predict_step` on in arrays."""


@dataclass(frozen=True, slots=True)
class FeedWay:
    """Says which way records take through `feed`, and why; people who watch the job read it.

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
    """Describes how a new row is filled: a function of (seed, table, key) alone.

    kind: "constant" (value), "uniform" (low, high), "normal" (mean, stddev),
    "truncated_normal" (mean, stddev; two standard deviations).
    """

    kind: str
    params: dict[str, float] = field(default_factory=dict)

    @property
    def centre(self) -> float:
        """The value of each float of an untrained row in an evaluation or an export."""
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

    Attributes:
        kind: A name of the list below, or "own": a rule of the user's own, which is `program`.
        params: The settings of that kind as floats; flags are 0.0 or 1.0.
        program: The rule of "own".

    The settings of each kind stand in brackets. Each of the first list also has `weight_decay`,
    decoupled from the gradient (0.004 of "adamw", else 0).

    - "sgd" (), "momentum" (momentum, nesterov), "adagrad" (epsilon, initial_accumulator)
    - "adadelta" (rho, epsilon), "adam" and "adamw" (beta_1, beta_2, epsilon, amsgrad)
    - "nadam" and "adamax" (beta_1, beta_2, epsilon), "lion" (beta_1, beta_2)
    - "schedule_free_adamw" (beta_1, beta_2, epsilon, warmup_steps)
    - "rmsprop" (rho, momentum, epsilon, centered)
    - "ftrl" (learning_rate_power, initial_accumulator, l1, l2, l2_shrinkage, beta)
    - "group_ftrl" (ftrl's without the power, and l21: group lasso over a table's row)

    These have PyTorch's formulas and defaults:

    - "torch_sgd" (momentum, dampening, nesterov, weight_decay)
    - "torch_adagrad" (lr_decay, epsilon, initial_accumulator, weight_decay)
    - "torch_adam" and "torch_adamw" (beta_1, beta_2, epsilon, amsgrad, weight_decay)
    - "torch_rmsprop" (alpha, momentum, epsilon, centered, weight_decay)

    The learning rate is no setting: it travels with each push. "own" has only `weight_decay`.
    """

    kind: str
    params: dict[str, float] = field(default_factory=dict)
    program: Program | None = None


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """Describes the constraint that the store puts on weights after each update.

    kind and params: "non_neg" (); of a table's row also "norm" (min, max, rate, epsilon), the L2
    norm of the row as Keras' `MinMaxNorm` holds it.
    """

    kind: str
    params: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableDescription:
    """An embedding table. `input_dim` is None if ids may be any 64-bit number.

    Attributes:
        keep_names: Whether the strings behind the ids are kept, for `Trainer.names`.
        trainable: Whether rows are updated. They are created, read and kept all the same.
        given_rows: Whether every key begins with a row of `Trainer.given_rows`.
        rate: A factor of the learning rate.
        statistics: Set if rows are decayed sums. The last float of such a row is its period: the
            sums are decayed to it. A step's gradient of a row is what it adds to the sums, without
            the period.
        wire_dtype: The type of rows and gradients on the wire: "float32", "float16" or "bfloat16".
            The store holds and updates rows in float32.
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
    """The place of a variable in the flat dense or state vector, in elements.

    Attributes:
        trainable: Whether the loss has a gradient for a dense variable. A variable without one
            keeps its value under every optimizer. For a state variable: whether training changes
            it.
        momentum: A minibatch makes a state variable `momentum * old + change`. It is 1 if changes
            add up, 0 if the value is replaced.
        decays: Whether the optimizer's weight decay applies to a dense variable too.
        constraint: The constraint on the elements of a dense variable.
        optimizer: The optimizer of a dense variable, if it differs from the model's.
        rate: A factor of the learning rate of a dense variable.
        may_rest: Whether a gradient of -0.0 all over says that there is no gradient. It adds
            nothing to any other one. Then the variable rests: its optimizer does not count the
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
    """Describes how a minibatch's gradient is clipped, after gradients of equal ids are summed.

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

    Attributes:
        num_records: The number of rows of features and labels. It differs from the number of
            records read if `feed` leaves records out, or makes several examples of one.
        record_numbers: In PREDICTION, the number of each row's record in its source.
    """

    features: Features
    labels: Labels
    num_records: int
    record_numbers: Int64 | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one training step.

    Attributes:
        row_grads: The gradient of the rows of each id site, in the shape of those rows. For a table
            of statistics: what each occurrence adds to the sums, shape `ids.shape + (dim - 1,)`.
        dense_grad: The gradient of the flat dense vector.
        state_delta: The change that is added to `momentum` times the state; `change_of` makes it.
            For momentum 1 it is the new state minus the state given.
        loss: The mean over the minibatch.
        predictions: The input of `Trainer.measure`, as the backend likes it.
    """

    loss: float
    row_grads: Sequence[Float32]
    dense_grad: Float32
    state_delta: Float32
    predictions: Predictions = None


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


@runtime_checkable
class KeepsNames(Protocol):
    """A trainer of a model that may have tables with `keep_names`."""

    def names(self, minibatch: Minibatch, sites: Sequence[int]) -> Sequence[Sequence[str]]:
        """Return the strings of which the ids of some sites were made, in the order of `ids`.

        Asked for the sites of tables with `keep_names` alone.

        Raises:
            ModelError: The ids of a site are not made of strings.
        """
        ...


@runtime_checkable
class RunsCallbacks(Protocol):
    """A trainer of a model file that may have callbacks."""

    def run_callbacks(self, call: CallbackCall, is_alone: bool) -> CallbackResult:
        """Call the user's callbacks, made anew and given what they remembered.

        Asked if `Trainer.callbacks` says that there are some.

        Args:
            call: The moment, and what callbacks remember.
            is_alone: No other process would miss what a callback changes in the model file.

        Raises:
            ModelError: One raised, or remembers what JSON does not know.
            SideEffectError: One has changed globals of the model file, and `is_alone` is False.
        """
        ...


class Pulled(Protocol):
    """The result of a lookup: the rows of each site, and the dense and state vectors."""

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
    """The needs of the model file's callbacks that the job must meet.

    watches: names one that waits for evaluations, or is "". watches_loss: one waits for the loss of
    evaluations. namespace: The globals of the model file. A change of them stays in one process.
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
        """Return the sums since `new_metrics`, to be added over workers."""
        ...

    def metric_results(self, states: MetricStates) -> dict[str, float]:
        """Compute the metrics from merged states."""
        ...

    def predict_step(
        self, minibatch: Minibatch, rows: Sequence[Float32], dense: Float32, state: Float32
    ) -> Predictions:
        """Return the model's outputs, as an array or (named) structure of arrays."""
        ...


class SavedPredictor(Predictor, Protocol):
    """An exported model. It brings its parameters: rows, dense and state vectors are empty."""

    def check(self, sample: Minibatch) -> None:
        """Call the model once.

        Raises:
            ModelError: The export does not fit the model file.
        """
        ...


class Trainer(Predictor, Protocol):
    """A model whose parameters lie elsewhere: it is built, described, trained and exported.

    Attributes:
        callbacks: The needs of the callbacks that the job calls; None if the model file has none.
            Known after `build`.
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

        Shape (input_dim, dim) each, for the tables that are described with `given_rows`.
        """
        ...

    def set_lookup(self, pull: Lookup) -> None:
        """Give the lookup that models need whose ids depend on parameters. Called after `build`."""
        ...

    def id_sites(self) -> Sequence[int]:
        """Return, for each id site, the index of its table in `ModelDescription.tables`."""
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

    def export(
        self, directory: Path, dense: Float32, state: Float32, tables: TableSource | None
    ) -> None:
        """Write a model that serves without elasticdl into `directory` (which exists, empty).

        If `tables` is None, the rows of the tables lie beside it, as Parquet. `docs/serving.md`
        describes the files.
        """
        ...


class TableSource(Protocol):
    """Access to whole tables, for `Trainer.export`."""

    def scan(self, table: int) -> Iterator[tuple[Int64, Float32]]:
        """Yield (keys (n,), rows (n, dim)) until every trained row of the table was seen once."""
        ...
