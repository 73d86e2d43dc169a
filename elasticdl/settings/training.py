"""The settings of training and evaluation: what an update is, and when to evaluate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from elasticdl.job import Strategy
from elasticdl.settings.section import Only, Section

_TRAIN = Only(("train",))
_EVALUATE = Only(("train", "evaluate"))

MINIBATCHES_PER_TASK = 20
"""The size of a task that nobody has chosen; such tasks may be larger (`master/tasks.py`)."""
MOST_MINIBATCHES_PER_TASK = 1_000


MOST_EXCHANGED = 64


def _minibatches(value: object) -> object:
    """Read `--exchange_minibatches`.

    Raises:
        ValueError: The value is neither a number of minibatches nor "auto".
    """
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if value == "auto" or (isinstance(number, int) and 1 <= number <= MOST_EXCHANGED):
        return number
    raise ValueError(
        f"--exchange_minibatches: expected auto or a number from 1 to {MOST_EXCHANGED}, "
        f"found {value!r}"
    )


class TrainingSection(Section):
    """Training."""

    distribution_strategy: Annotated[
        Strategy,
        Field(
            description="Where parameters live: Local (in this process), "
            "ParameterServerStrategy (on ps replicas), AllreduceStrategy (in each worker; models "
            "without embedding tables), or HybridStrategy (rows on ps replicas, all else in each "
            "worker)."
        ),
    ] = Strategy.LOCAL
    minibatch_size: Annotated[PositiveInt, Field(description="Records of one step.")] = 64
    num_minibatches_per_task: Annotated[
        PositiveInt,
        Field(
            description="Minibatches in one task, the unit that workers lease. With the default, "
            "training tasks on ps replicas are larger, up to 1000, where an epoch would have at "
            "least 40,000 of them."
        ),
    ] = MINIBATCHES_PER_TASK
    num_epochs: Annotated[
        PositiveInt, Field(description="Passes over the training data."), _TRAIN
    ] = 1
    finish_rate: Annotated[
        float,
        Field(
            gt=0.0,
            le=1.0,
            description="The job ends when this part of the workers has nothing left to do, and "
            "the others hold their last tasks for twice as long as a task takes. What is left of "
            "those is told.",
        ),
        _TRAIN,
    ] = 1.0
    seed: Annotated[
        NonNegativeInt, Field(description="Seed of initial values, task order and shuffles.")
    ] = 0
    shuffle_tasks: Annotated[
        bool,
        Field(description="Hand out the tasks of each epoch in a seeded random order."),
        _TRAIN,
    ] = True
    shuffle: Annotated[
        Literal["tasks", "records"],
        Field(
            description="What is drawn over all training data: the order of tasks, each a range of "
            "consecutive records; or also the records of a task, in small blocks."
        ),
        _TRAIN,
    ] = "tasks"
    shuffle_block_records: Annotated[
        PositiveInt | None,
        Field(
            description="With --shuffle=records: records that stay together on their way into a "
            "task [default: a 64th of a task]."
        ),
        _TRAIN,
    ] = None
    learning_rate: Annotated[
        float | None,
        Field(gt=0, description="Passed to optimizer(lr=...) [default: its own]."),
        _TRAIN,
    ] = None
    use_async: Annotated[
        bool,
        Field(
            description="Apply each gradient as it arrives; false: average those of several "
            "workers to one update."
        ),
        _TRAIN,
    ] = True
    grads_to_wait: Annotated[
        PositiveInt | None,
        Field(
            description="With --use_async=false: gradients that make an update; workers that are "
            "gone are not waited for [default: --num_workers]."
        ),
        _TRAIN,
    ] = None
    sync_version_tolerance: Annotated[
        NonNegativeInt,
        Field(
            description="With --use_async=false: how many updates older the parameters of a "
            "gradient may be; an older one is computed again."
        ),
        _TRAIN,
    ] = 0
    global_batch_size: Annotated[
        PositiveInt | None,
        Field(
            description="With AllreduceStrategy: records of one update, whatever the number of "
            "workers; a multiple of --minibatch_size [default: a minibatch of each worker that "
            "has a task]."
        ),
        _TRAIN,
    ] = None
    deterministic: Annotated[
        bool,
        Field(
            description="With AllreduceStrategy and --global_batch_size: which minibatches make "
            "which update, and in which order they are added up, is decided by the data alone, so "
            "that any number of workers, and runs in which some are lost, give the same losses."
        ),
        _TRAIN,
    ] = False
    max_staleness: Annotated[
        NonNegativeInt | None,
        Field(
            description="Most updates, of all workers, between a pull and the gradient that was "
            "computed on it; 0 trains strictly one step after the other. With HybridStrategy: most "
            "updates of this worker [default: no bound; with HybridStrategy 0]."
        ),
        _TRAIN,
    ] = None
    get_model_steps: Annotated[
        PositiveInt,
        Field(
            description="A worker pulls the dense parameters once in this number of steps; "
            "embedding rows in each."
        ),
        _TRAIN,
    ] = 1
    push_steps: Annotated[
        PositiveInt,
        Field(
            le=1024,
            description="A worker adds up the gradients of this number of minibatches of a task, "
            "and pushes their sum as one update.",
        ),
        _TRAIN,
    ] = 1
    exchange_minibatches: Annotated[
        int | Literal["auto"],
        BeforeValidator(_minibatches),
        Field(
            description="A worker pulls the parameters for this number of minibatches of a task "
            "together, and pushes their gradients in one frame to each ps replica; each stays an "
            "update of its own. auto: by the number of ps replicas.",
        ),
        _TRAIN,
    ] = 1
    staleness_lr_modulation: Annotated[
        bool,
        Field(description="Divide the learning rate of a late gradient by its staleness."),
        _TRAIN,
    ] = False
    on_nan: Annotated[
        Literal["stop", "skip"],
        Field(
            description="When a loss or its gradient is NaN or infinite: stop the job or skip the "
            "minibatch."
        ),
        _TRAIN,
    ] = "stop"
    max_task_retries: Annotated[
        NonNegativeInt,
        Field(
            description="How often a task whose code raises, or whose worker crashes, runs out of "
            "memory or out of time over it, is tried again before it is set aside and the job "
            "fails at its end."
        ),
    ] = 3
    task_timeout_seconds: Annotated[
        float | None,
        Field(
            gt=0,
            description="A worker whose model file (feed, model, metrics) does not return for so "
            "long on one minibatch is ended, and its task is tried again. First calls, in which a "
            "framework compiles, have an hour unless nothing is computed; waiting for other "
            "processes or for the data's files does not count [default: 300, or 20 times "
            "the longest minibatch].",
        ),
    ] = None

    @property
    def most_minibatches_per_task(self) -> int:
        """The largest number of minibatches that a task of the job may have."""
        is_chosen = self.num_minibatches_per_task != MINIBATCHES_PER_TASK
        return self.num_minibatches_per_task if is_chosen else MOST_MINIBATCHES_PER_TASK

    @property
    def tasks_per_update(self) -> int | None:
        """The number of whole tasks in a global batch; None if it is not a whole number."""
        if self.global_batch_size is None:
            return None
        num_tasks, rest = divmod(
            self.global_batch_size, self.minibatch_size * self.num_minibatches_per_task
        )
        return None if rest or not num_tasks else num_tasks


class EvaluationSection(Section):
    """Evaluation."""

    evaluation_steps: Annotated[
        NonNegativeInt | None,
        Field(
            description="Updates between two evaluations; 0: evaluate at the end only [default: "
            "after each epoch, before the next one begins]."
        ),
        _TRAIN,
    ] = None
    evaluation_minibatches: Annotated[
        NonNegativeInt,
        Field(
            description="Minibatches to evaluate on, the same each time, drawn by the job's seed "
            "from all of the validation data; 0: all of it."
        ),
        _EVALUATE,
    ] = 0
