"""The settings of a job's model: its file, and the names of functions in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from elasticdl.settings.section import Only, Section

_TRAIN = Only(("train",))
_EVALUATE = Only(("train", "evaluate"))
_PREDICT = Only(("predict",))

_NAMES = (
    "loss",
    "optimizer",
    "eval_metrics_fn",
    "weighted_metrics_fn",
    "callbacks",
    "prediction_outputs_processor",
    "custom_data_reader",
)

KERAS_VARIABLE = "KERAS_BACKEND"
"""The environment variable by which Keras chooses its backend when it is imported."""

KERAS_BACKENDS = ("tensorflow", "jax")
"""The backends of Keras that a job can use."""

STATISTICS_VARIABLE = "ELASTICDL_STATISTICS"
"""The environment variable with the path of `--statistics`, for model files."""


class ModelSection(Section):
    """Model."""

    model_zoo: Annotated[
        Path, Field(description="Folder that holds model files; put on the import path.")
    ] = Path("model_zoo")
    model_def: Annotated[
        str, Field(description="Model function as package.module.function, below --model_zoo.")
    ]
    model_changes: Annotated[
        bool,
        Field(
            description="Go on with the job in --job_dir by another model file, perhaps of another "
            "framework, whose tables and optimizer are the same for the ps replicas."
        ),
        _TRAIN,
    ] = False
    model_params: Annotated[
        str,
        Field(
            description='Arguments of the model function: "units=64;dropout=0.1"; a secret may be '
            "given as name=env:NAME or name=file:PATH."
        ),
    ] = ""
    negative_sampling_rate: Annotated[
        float | None,
        Field(
            gt=0,
            le=1,
            description="Which share of the negatives the training data have. The model function "
            "takes it by this name, for elasticdl.layers.SamplingCorrection.",
        ),
    ] = None
    statistics: Annotated[
        Path | None,
        Field(
            description="What `elasticdl data analyze` wrote; model files read it with "
            "elasticdl.preprocessing.statistics."
        ),
    ] = None
    loss: Annotated[str, Field(description="Name of the loss function in the module."), _TRAIN] = (
        "loss"
    )
    optimizer: Annotated[str, Field(description="Name of the optimizer function."), _TRAIN] = (
        "optimizer"
    )
    feed: Annotated[str, Field(description="Name of the feed function (or dataset_fn).")] = "feed"
    eval_metrics_fn: Annotated[
        str, Field(description="Name of the metrics function."), _EVALUATE
    ] = "eval_metrics_fn"
    weighted_metrics_fn: Annotated[
        str,
        Field(description="Name of the function of metrics that use sample weights."),
        _EVALUATE,
    ] = "weighted_metrics_fn"
    callbacks: Annotated[str, Field(description="Name of the callbacks function."), _TRAIN] = (
        "callbacks"
    )
    prediction_outputs_processor: Annotated[
        str, Field(description="Name of the class that receives predictions."), _PREDICT
    ] = "PredictionOutputsProcessor"
    custom_data_reader: Annotated[
        str, Field(description="Name of the function that returns a data reader.")
    ] = "custom_data_reader"
    script: Annotated[
        Path | None,
        Field(description="In place of a model file: the script of `elasticdl run`."),
        Only(()),
    ] = None
    script_arguments: Annotated[
        tuple[str, ...], Field(description="What the script finds in sys.argv."), Only(())
    ] = ()
    run_eagerly: Annotated[
        bool,
        Field(
            description="Run feed, model and loss as plain Python, so that print, breakpoint() and "
            ".numpy() work in them; slower, and for --distribution_strategy=Local alone."
        ),
    ] = False
    keras_backend: Annotated[
        Literal["tensorflow", "jax"] | None,
        Field(
            description="By what Keras computes, in all processes of the job: tensorflow, or jax. "
            "Without the flag, as KERAS_BACKEND says where the job is started."
        ),
    ] = None
    torch_compile: Annotated[
        bool,
        Field(
            description="Compile the training step of a model in PyTorch by torch.compile, before "
            "the first task; needs a C++ compiler. It pays where a job takes minutes."
        ),
        _TRAIN,
    ] = False
    embedding_threshold_bytes: Annotated[
        NonNegativeInt,
        Field(description="Keras Embedding tables above this size are moved to the ps replicas."),
    ] = 2 * 1024 * 1024

    def functions(self) -> dict[str, str]:
        """Return, by flag, the names of functions that a job looks for in the model file."""
        found = {flag: str(getattr(self, flag)) for flag in ("feed", *_NAMES)}
        return {flag: name for flag, name in found.items() if name}

    def named(self) -> dict[str, str]:
        """Return, by flag, the names that must exist because the user gave them.

        A model file may leave out functions with a default name. `feed` has another default too.
        """
        fields = type(self).model_fields
        given = {flag: str(getattr(self, flag)) for flag in _NAMES}
        return {
            flag: name for flag, name in given.items() if name not in ("", fields[flag].default)
        }
