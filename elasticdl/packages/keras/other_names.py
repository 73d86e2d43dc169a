"""Names of Keras that people write in a model file or as flags, with elasticdl's own."""

from __future__ import annotations

from elasticdl.cli.other_names import OtherNames

_SCHEDULE = (
    "optimizer() takes a keras.optimizers.schedules.LearningRateSchedule as its rate, and "
    "callbacks() may return a LearningRateScheduler"
)
FLAGS = {
    "batch_size": "--minibatch_size",
    "class_weight": "give sample weights as the third element of feed, such as "
    "tf.gather(weights, label)",
    "epochs": "--num_epochs",
    "initial_epoch": "--num_epochs is how many are left; --checkpoint_dir_for_init has the "
    "parameters",
    "jit_compile": "wrap a part of the model in tf.function(jit_compile=True)",
    "loss_weights": "write loss_weights = ... in the model file beside a loss of Keras, or "
    "add the weighted losses of the outputs up in the function loss",
    "lr": "--learning_rate",
    "sample_weight": "give sample weights as the third element of feed",
    "steps_per_epoch": "an epoch is all records of --training_data; give fewer files, or more "
    "epochs",
    "steps_per_execution": "steps overlap by themselves",
    "validation_batch_size": "--minibatch_size is that of evaluations too",
    "validation_freq": "--evaluation_steps counts updates",
    "validation_steps": "--evaluation_minibatches",
    "verbose": "--summary has the numbers of the display",
}
"""The arguments of Keras' compile and fit, and earlier arguments of its optimizers."""
_IN_FILE = {name: words for name, words in FLAGS.items() if name != "lr"} | {
    "auto_scale_loss": "a model that computes in float16 has its loss scaled by itself",
    "lr_schedule": _SCHEDULE,
    "lr_scheduler": _SCHEDULE,
    "learning_rate_schedule": _SCHEDULE,
    "learning_rate_scheduler": _SCHEDULE,
}

NAMES = OtherNames(
    in_file=_IN_FILE,
    functions=(
        *("class_weight", "learning_rate_schedule", "learning_rate_scheduler", "loss_weights"),
        *("lr_schedule", "lr_scheduler", "sample_weight"),
    ),
    beside_a_loss=("loss_weights",),  # Keras makes a function of both
)
