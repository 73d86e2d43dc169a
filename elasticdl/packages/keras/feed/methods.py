"""Methods of `tf.data.Dataset` that a `feed` may not use, and what to write instead.

`feed` is given the records of one task at a time. A method for "the first records" or for "all
records" would apply to each task anew, without a word. `docs/designs/feed.md` has all methods.
"""

from __future__ import annotations

from elasticdl.errors import ModelError

_IN_THE_DATA = "prepare the data so before the job"
_ONE_EACH = "map each record to all that is needed of it, in a tuple or dict"
_LOOK = "dataset.element_spec tells shapes and types, tf.print in a map shows values"

BY_TASK = {
    "concatenate": "name all the data in the flag (--training_data and the like takes several "
    "paths); to make more examples of a record, use flat_map",
    "enumerate": "store a number in the record",
    "group_by_window": "use bucket_by_sequence_length for minibatches of similar length; to join "
    f"records, {_IN_THE_DATA}",
    "rejection_resample": "use filter with tf.random.stateless_uniform seeded by something of the "
    "record",
    "scan": f"use map, which sees one record; what needs the records before it, {_IN_THE_DATA}",
    "shard": "leave it out: the job deals the records to its workers",
    "skip": f"{_IN_THE_DATA}, or use filter on what marks the record",
    "snapshot": "leave it out",
    "take": "give the job a shorter file",
    "take_while": "use filter",
    "unique": f"{_IN_THE_DATA}",
    "window": "use batch() for minibatches; to make one example of several records, "
    f"{_IN_THE_DATA}",
}
"""Methods that would mean something else for a task than for all the data: name -> remedy."""

READING = {
    "__iter__": _LOOK,
    "__len__": "leave it out",
    "as_numpy_iterator": _LOOK,
    "cardinality": "leave it out",
    "fingerprint": "leave it out",
    "get_single_element": "return the dataset itself",
    "reduce": "compute it once from all the data, and write the number into the model file",
    "save": "leave it out",
}
"""Methods that read the records of the dataset while `feed` only describes what is to be done."""

OTHER = {
    "sparse_batch": "use ragged_batch or padded_batch",
}
"""Methods that cannot be used for another reason: name -> remedy."""


def refusal(feed_call: str, name: str) -> ModelError:
    """Return the error for a method that a `feed` may not use.

    Args:
        feed_call: The call as the user wrote it, for example `dataset.take(100)`.
        name: The method.
    """
    if name in BY_TASK:
        why = "for each task by itself, since feed is given the records of one task at a time"
        return ModelError(f"feed calls {feed_call}: it would be done {why}; {BY_TASK[name]}")
    if name in READING:
        why = "feed is given the records of one task at a time, so it would not be of all the data"
        return ModelError(f"feed reads its dataset by {feed_call}: {why}; {READING[name]}")
    return ModelError(f"feed calls {feed_call}, which elasticdl does not run; {OTHER[name]}")


def foreign(name: str, found: str) -> ModelError:
    """Return the error for a `feed` that returns a dataset not made of the one it was given."""
    return ModelError(
        f"{name} must return the dataset that it is given, after methods of it such as map, filter "
        f"and flat_map; found another one ({found}). Datasets of tf.data.Dataset.zip, range, "
        f"from_tensor_slices and the like would start again in each task: {_ONE_EACH}, and use "
        "other datasets inside flat_map only"
    )
