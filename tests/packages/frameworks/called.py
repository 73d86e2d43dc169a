"""Callbacks as a job calls them: at each moment by a worker that knows what they remember."""

from elasticdl.job import CallbackCall, Moment, MomentKind

VALUES = [0.5, 0.7, 0.69, 0.71, 0.705, 0.7, 0.69, 0.72, 0.6, 0.6, 0.6, 0.6]


def call(callbacks, moments):
    """Call `JobCallbacks` at each moment; yield the results until one stops."""
    state, set_rate = "", None
    for moment in moments:
        result = callbacks.run(CallbackCall(state, set_rate, moment, num_epochs=20), is_alone=True)
        state, set_rate = result.state, result.learning_rate
        yield result
        if result.stop:
            return


def moments(values, kind=MomentKind.EVALUATION, name="val_auc"):
    """Yield the begin of training and a moment for each value."""
    yield Moment(MomentKind.TRAIN_BEGIN)
    for number, value in enumerate(values):
        yield Moment(kind, number, {name: value, "loss": value})
