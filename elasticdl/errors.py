"""The exceptions of elasticdl. A message says what was expected and found, and what to do."""

import errno
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable

_OTHERS_CODE = (
    *(path + os.sep for path in set(sysconfig.get_paths().values())),
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    "<",
)
"""Paths of code that is not the user's (Python, packages and elasticdl) begin with these."""
_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "numpy")  # may be installed anywhere
_STORAGE_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.ESTALE)


class ElasticdlError(Exception):
    """Root of every error raised on purpose by elasticdl.

    is_certain: Whether another try at the same records fails in the same way.
    """

    is_certain = False


class ConfigError(ElasticdlError):
    """A flag, file or combination of settings that cannot work."""


class ModelError(ElasticdlError):
    """The user's model file lacks something, or gives something of the wrong kind or shape."""


class IdError(ModelError):
    """An embedding table has no row for an id."""

    is_certain = True


class NonFiniteLossError(ModelError):
    """The loss of a minibatch is NaN or infinite."""


class DataError(ElasticdlError):
    """A data file or record cannot be read: it is torn, foreign, or does not parse.

    record: The number of the record that does not parse, if the error belongs to one record.
    is_certain: The default is True if the error belongs to one record.
    """

    def __init__(
        self, message: str = "", record: int | None = None, is_certain: bool | None = None
    ) -> None:
        super().__init__(message)
        self.record = record
        self.is_certain = record is not None if is_certain is None else is_certain


class RequestTooLargeError(DataError):
    """A request needs more memory of `elasticdl serve` than one request may use."""


class AwayError(DataError):
    """A source of data does not answer, but may answer later."""


class CheckpointError(ElasticdlError):
    """A checkpoint cannot be written or read, or belongs to another model."""


class ExportError(ElasticdlError):
    """A version of an export is missing, damaged or not what it should be."""


class StoreError(ElasticdlError):
    """The parameter store refused a request."""


class UnknownTableError(StoreError):
    """No table of that name or number was declared."""


class ModelMismatchError(StoreError):
    """Two parties of a job declare different models."""


class MemoryLimitError(StoreError):
    """New rows would take more memory than `--ps_memory_limit` allows; nothing was changed."""


class StaleLeaseError(StoreError):
    """A push or report came under a lease that has ended: another worker has the task."""


class SideEffectError(ModelError):
    """A callback has changed something that the other workers do not see."""


class GapError(StoreError):
    """A push came, but the ps replica has not applied or has lost the push before it."""


class NotDeclaredError(StoreError):
    """A ps replica has no model: no worker has declared one since the replica was started."""


class StaleParametersError(StoreError):
    """A gradient was computed on parameters that are older than the job allows."""


class OutOfTurnError(ElasticdlError):
    """A task of a deterministic job waits for earlier tasks on which no worker works."""


class AuthenticationError(ElasticdlError):
    """The other end did not prove that it knows the job's token."""


class UnavailableError(ElasticdlError):
    """A process of the job could not be reached within its deadline."""


class RingError(ElasticdlError):
    """A ring of workers has ended, or could not be formed.

    Attributes:
        rank: The rank that caused it. The others may go on without this rank; None: no rank.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class LaunchError(ElasticdlError):
    """A process of the job could not be started, or failed too often."""


class UnknownJobError(ElasticdlError):
    """No job of this name is known on this machine or cluster."""


class StateError(ElasticdlError):
    """The journal of the master cannot be written or read, or belongs to another job."""


class UnusableStateError(StateError):
    """The journal is damaged or foreign, so no other master can read it either."""


class TakenOverError(StateError):
    """Another master has taken over the job. This master must end without ending its processes."""


class JobFailedError(ElasticdlError):
    """The job ended without doing all of its work; the message names what is missing."""


def is_of_storage(error: BaseException | None) -> bool:
    """Whether an error or one of its causes is a failure of a disk or a store outside of the job.

    Frameworks and libraries raise their own exceptions for a full disk. Their messages have the
    words of the kernel.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError | CheckpointError):
            return True
        if any(os.strerror(code) in str(error) for code in _STORAGE_CODES):
            return True
        error = error.__cause__ or error.__context__
    return False


def in_short(error: BaseException, most: int = 800) -> str:
    """Return the message of a framework's error on one line, without its lists and tracebacks.

    TensorFlow adds the nodes of a graph, all labels of a minibatch (8 KB of text), and the
    traceback of a function that a graph calls.
    """
    said = " ".join(str(getattr(error, "message", "") or error).split())
    label = re.search(
        r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)", said
    )
    if label is not None:
        return f"a label is {label[1]}, and the model's output has {label[2]} classes, from 0 on"
    said = re.sub(
        r"Graph execution error: Detected at node .*?<stack traces? unavailable> ", "", said
    )
    said = re.sub(r"\{\{function_node .*?\}\} ", "", said)
    said = re.sub(
        r" (\[\[\{\{(function_)?node |\[Op:\w+\]|Traceback \(most recent call last\):).*", "", said
    )
    return said if len(said) <= most else f"{said[:most]} ... ({len(said):,} characters)"


def place_of(error: BaseException) -> str:
    """Return `file:line` of an error's innermost frame in the user's code, or else in ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename]
    last = f"{ours[-1].filename}:{ours[-1].lineno}" if ours else "at an unknown place"
    return users_place_in(frames) or last


def users_place_of(error: BaseException | None) -> str:
    """Return `file:line` in the user's code of an error or its cause; "" if there is none.

    The cause comes first.
    """
    if error is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    return users_place_of(error.__cause__) or users_place_in(frames)


def users_place_in(frames: Iterable[traceback.FrameSummary]) -> str:
    """Return `file:line` of the innermost frame in the user's code; "" if there is none."""
    frameworks = (sys.modules[name] for name in _FRAMEWORKS if name in sys.modules)
    others = (*_OTHERS_CODE, *(os.path.dirname(module.__file__ or "<") for module in frameworks))
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
