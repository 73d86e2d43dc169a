"""Lists flags and settings of other programs, and removed ones, with elasticdl's own names."""

from __future__ import annotations

OF_KERAS = {
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


REMOVED = {
    "otlp_endpoint": "a collector of OpenTelemetry reads /metrics of the job's page, by its "
    "receiver prometheus",
}
"""The flags that this version no longer has, with what to use in their place."""
