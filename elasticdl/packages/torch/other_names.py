"""Names of PyTorch that people write in a model file, with what has their meaning here."""

from __future__ import annotations

from elasticdl.cli.other_names import OtherNames

_SCHEDULER = "callbacks() returns an elasticdl.callbacks.LearningRateScheduler"

NAMES = OtherNames(
    module="torch",
    in_file={
        "loss_weights": "add the weighted losses up in the function loss",
        "jit_compile": "--torch_compile",
        "lr_scheduler": _SCHEDULER,
        "scheduler": _SCHEDULER,
    },
    functions=("loss_weights", "lr_scheduler", "scheduler"),
)
