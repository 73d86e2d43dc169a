"""Refuses hooks of a model that Keras' `fit` calls and a job does not; says what to write instead.

A job calls the model itself and nothing else of it: workers compute gradients, ps replicas apply
them, and the functions of the model file say the rest.
"""

from __future__ import annotations

import keras

from elasticdl.errors import ModelError

_LOSS = (
    "write the loss as loss(labels, predictions) in the model file; a term that needs more than "
    "these is added in call() with self.add_loss(...)"
)
_METRICS = "name metrics in eval_metrics_fn() in the model file"
_COMPILE = (
    "write optimizer(), loss(labels, predictions) and eval_metrics_fn() in the model file instead"
)
_PREDICT = "return from call() what predictions are to be, or write a PredictionOutputsProcessor"
_LOOP = "what it does goes into feed(), loss(), callbacks() or call()"
_VARIABLES = "set layer.trainable = False on what is not to be trained"

_REMEDIES = {
    "train_step": _LOSS,
    "compute_loss": _LOSS,
    "stateless_compute_loss": _LOSS,
    "_compute_loss": _LOSS,
    "test_step": _METRICS,
    "compute_metrics": _METRICS,
    "get_metrics_result": _METRICS,
    "reset_metrics": _METRICS,
    "metrics": _METRICS,
    "predict_step": _PREDICT,
    "compile": _COMPILE,
    "compile_from_config": _COMPILE,
    "fit": _LOOP,
    "evaluate": _LOOP,
    "predict": _LOOP,
    "make_train_function": _LOOP,
    "make_test_function": _LOOP,
    "make_predict_function": _LOOP,
    "train_on_batch": _LOOP,
    "test_on_batch": _LOOP,
    "predict_on_batch": _LOOP,
    "trainable_variables": _VARIABLES,
    "trainable_weights": _VARIABLES,
    "non_trainable_variables": _VARIABLES,
    "non_trainable_weights": _VARIABLES,
    "export": "the job's export holds what call() returns in inference",
}


def check_hooks(model: keras.Model) -> None:
    """Refuse a model with methods of its own, or a `compile`, that a job does not call.

    Raises:
        ModelError: Names each method and what to write instead.
    """
    found: dict[str, list[str]] = {}
    for name, remedy in _REMEDIES.items():
        if _is_own(model, name):
            found.setdefault(remedy, []).append(name)
    if found:
        names = ", ".join(name for names in found.values() for name in names)
        remedies = "; ".join(f"for {', '.join(names)}: {text}" for text, names in found.items())
        raise ModelError(
            f"model {model.name!r} ({type(model).__name__}) has its own {names}, which a job never "
            f"calls. Take it out; {remedies}"
        )
    if model.compiled:
        raise ModelError(
            f"the model function compiled model {model.name!r}; a job uses nothing of it. Take "
            f"compile(...) out and {_COMPILE}; of a saved model say "
            "keras.models.load_model(path, compile=False)"
        )


def _is_own(model: keras.Model, name: str) -> bool:
    """Say whether the user's class, or the object itself, defines a method of Keras' model."""
    if name in vars(model):
        return True
    # The first class that defines a method is the one whose method runs.
    owner = next((cls for cls in type(model).__mro__ if name in vars(cls)), None)
    return owner is not None and owner.__module__.partition(".")[0] != "keras"
