"""The exceptions that elasticdl raises. Each message says what was expected, found, and to do."""

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
"""How names of files begin whose code is not the user's: of Python, packages and elasticdl."""
_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "numpy")  # which may lie anywhere
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
    """An id that an embedding table has no row for."""

    is_certain = True


class NonFiniteLossError(ModelError):
    """The loss of a minibatch is NaN or infinite."""


class DataError(ElasticdlError):
    """A data file or record cannot be read: it is torn, foreign, or does not parse.

    record: The number of the record that does not parse, if it is of one.
    is_certain: That of a record is, unless it is said that it is not.
    """

    def __init__(
        self, message: str = "", record: int | None = None, is_certain: bool | None = None
    ) -> None:
        super().__init__(message)
        self.record = record
        self.is_certain = record is not None if is_certain is None else is_certain


class RequestTooLargeError(DataError):
    """A request would take more of `elasticdl serve` than one may."""


class AwayError(DataError):
    """A source of data does not answer; it may do so later."""


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
    """A push or report comes from a lease that has been given to somebody else since."""


class SideEffectError(ModelError):
    """A callback has changed what other workers would not know of."""


class GapError(StoreError):
    """A push came whose predecessor a ps replica has not applied, or has lost with its memory."""


class NotDeclaredError(StoreError):
    """A ps replica knows no model yet: nobody has declared one to it since it was started."""


class StaleParametersError(StoreError):
    """A gradient of parameters that are older than the synchrony of the job allows."""


class OutOfTurnError(ElasticdlError):
    """A task of a deterministic job waits for tasks before it that nobody works on."""


class AuthenticationError(ElasticdlError):
    """The other end did not prove that it knows the job's token."""


class UnavailableError(ElasticdlError):
    """A process of the job could not be reached within its deadline."""


class RingError(ElasticdlError):
    """A ring of workers has come to its end, or could not be formed.

    Attributes:
        rank: The rank by which it was, and without which the others may go on; None if no one's.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class LaunchError(ElasticdlError):
    """A process of the job could not be started, or failed too often."""


class UnknownJobError(ElasticdlError):
    """No job of a name was submitted, as far as can be seen from here."""


class StateError(ElasticdlError):
    """What the master must not forget cannot be written or read, or belongs to another job."""


class UnusableStateError(StateError):
    """What the master must not forget is damaged or foreign: no other master can read it either."""


class TakenOverError(StateError):
    """Another master has taken over the job; this one must end, and leave its processes alone."""


class JobFailedError(ElasticdlError):
    """The job ended without doing all of its work; the message names what is missing."""


def is_of_storage(error: BaseException | None) -> bool:
    """Whether an error, or what it came of, is that of a disk or a store outside of the job.

    Frameworks and libraries have exceptions of their own for a full disk, with the kernel's words.
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
    """Return what a framework says of an error, on one line, without what it lists beside it.

    TensorFlow adds the nodes of a graph, all labels of a minibatch (8 KB of them), and the
    traceback of a function that is called from a graph.
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
    """Return `file:line` of the innermost frame of an error in the user's code, else in ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename]
    last = f"{ours[-1].filename}:{ours[-1].lineno}" if ours else "at an unknown place"
    return users_place_in(frames) or last


def users_place_of(error: BaseException | None) -> str:
    """Return `file:line` of the user's code in which an error came up, or what it came of; "" too.

    What it came of is looked at first.
    """
    if error is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    return users_place_of(error.__cause__) or users_place_in(frames)


def users_place_in(frames: Iterable[traceback.FrameSummary]) -> str:
    """Return `file:line` of the innermost frame of the user's code; "" if none is."""
    frameworks = (sys.modules[name] for name in _FRAMEWORKS if name in sys.modules)
    others = (*_OTHERS_CODE, *(os.path.dirname(module.__file__ or "<") for module in frameworks))
    own = [frame for frame in frames if not frame.filename.startswith(others)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""
