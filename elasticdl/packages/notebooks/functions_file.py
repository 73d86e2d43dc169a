"""Loads the file with functions of a user's program in the processes of its job.

A pickle runs code when it is loaded. So a file is loaded only if the user owns it and it has the
SHA-256 in the model file beside it. `packages/notebooks/functions.py` writes both files. If the
command that starts a job makes its secret, the processes also want a proof by that secret. The
proof shows that the file is the same as at the start of the job.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import linecache
import os
import pickle
import stat
import sys
import types
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from elasticdl.config import JobConfig
from elasticdl.errors import ModelError
from elasticdl.runtime.secret_files import private_opener, user_name

PYTHON = "{}.{}".format(*sys.version_info)
"""The Python version of this process. Functions in a file must have the same one."""

PROOF_FILE = "functions.proof"
"""File in the job's folder with proofs for the files that its processes may load."""

_FILES = "*-????????????????.pickle"  # see `packages/notebooks/functions.py`
_trusted: tuple[Path, bytes] | None = None  # the file of proofs of this process' job, and its key

_loading: ContextVar[dict[str, types.ModuleType]] = ContextVar("_loading")


def load(model_file: str, name: str, digest: str, python: str) -> dict[str, Any]:
    """Return the functions of a file beside a model file, by their names.

    Args:
        model_file: The path of the model file.
        name: The name of the file with the functions.
        digest: Its SHA-256.
        python: The Python version that wrote it.

    Raises:
        ModelError: It belongs to another user, was changed, or needs another Python.
    """
    path = Path(model_file).with_name(name)
    if python != PYTHON:
        raise ModelError(
            f"{path}: expected Python {python}, which has written the functions, found {PYTHON}: "
            "use the same in all processes, or write a model file and give model='model.py'"
        )
    content = _proved(path, digest)
    modules: dict[str, types.ModuleType] = {}
    token = _loading.set(modules)
    try:
        functions: dict[str, Any] = pickle.load(content)
        sources: dict[str, list[str]] = pickle.load(content)
    finally:
        _loading.reset(token)
    for module_name, module in modules.items():
        sys.modules.setdefault(module_name, module)  # a real module of that name wins
    for file, lines in sources.items():  # for tracebacks and TensorFlow's AutoGraph
        linecache.cache.setdefault(file, (sum(map(len, lines)), None, lines, file))
    return functions


def prove_all(config: JobConfig, job_dir: Path, token: bytes) -> None:
    """Write proofs for the files of functions that a job has when its folder is filled."""
    prove(config.model.model_zoo, job_dir, token)


def prove(model_zoo: Path, job_dir: Path, token: bytes) -> None:
    """Write proofs for the files of functions in the model folder, which the job may load.

    Args:
        model_zoo: The folder of the model file.
        job_dir: The folder of the job.
        token: The secret of the job.
    """
    key, proofs = _key(token), []
    for path in sorted(model_zoo.glob(_FILES)):
        # A file that cannot be read belongs to another user, and the job must not load it.
        with contextlib.suppress(OSError), path.open("rb") as file:
            proofs.append(_proof(key, hashlib.file_digest(file, "sha256").hexdigest()))
    place = job_dir / PROOF_FILE
    place.unlink(missing_ok=True)  # an earlier start may have left one
    if proofs:
        with open(place, "wb", opener=private_opener) as file:
            file.write(b"\n".join(proofs))


def trust(job_dir: Path, token: bytes) -> None:
    """Let this process load only files for which `prove` has written a proof."""
    global _trusted
    _trusted = job_dir / PROOF_FILE, _key(token)


def _key(token: bytes) -> bytes:
    return hmac.digest(token, b"functions of a program", "sha256")


def _proof(key: bytes, digest: str) -> bytes:
    return hmac.digest(key, digest.encode(), "sha256").hex().encode()


def _check_proof(path: Path, digest: str) -> None:
    if _trusted is None:
        return  # this process belongs to no job, or its job's secret was made after the files
    place, key = _trusted
    try:
        proofs = place.read_bytes().split()
    except OSError:
        proofs = []
    expected = _proof(key, digest)
    if not any(hmac.compare_digest(expected, found) for found in proofs):
        raise ModelError(
            f"{path}: expected functions that were there when the job was started, as {place} "
            "says, found others, which are not loaded: start the job again from Python"
        )


def _proved(path: Path, digest: str) -> io.BytesIO:
    """Return the content of a file after the checks of its owner, mode, hash and proof."""
    try:
        with path.open("rb") as file:
            # The open file is checked, not its path: nobody can exchange it afterwards.
            found = os.fstat(file.fileno())
            if found.st_uid not in (os.geteuid(), 0):
                raise ModelError(
                    f"{path}: expected functions of your own, found those of "
                    f"{user_name(found.st_uid)}, which are not loaded"
                )
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ModelError(
                    f"{path}: expected mode 0600, found {stat.S_IMODE(found.st_mode):04o}: others "
                    "can change the functions, which are not loaded"
                )
            content = file.read()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise ModelError(
            f"{path}: expected the functions that elasticdl.train has written, found others "
            "(another SHA-256), which are not loaded: start the job again from Python"
        )
    _check_proof(path, digest)
    return io.BytesIO(content)


# --- what a file is made of ----------------------------------------------------------------------


def module_of(name: str, file: str | None = None) -> types.ModuleType:
    """Return a module of the functions that are loaded now."""
    modules = _loading.get()
    if name not in modules:
        modules[name] = types.ModuleType(name)
        if file is not None:
            modules[name].__file__ = file
    return modules[name]


def namespace(name: str, file: str) -> dict[str, Any]:
    """Return the globals of a module of the functions that are loaded now."""
    return vars(module_of(name, file))


def missing(module: str, why: Mapping[str, str], name: str) -> None:
    """Raise an error that says why a module lacks a name; used as its `__getattr__`."""
    if name in why:
        raise AttributeError(
            f"{module}.{name} could not be given to this process ({why[name]}): make it in the "
            "function that uses it"
        )
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def same(value: object) -> object:
    """Return the argument."""
    return value


def with_own_classes(own: Mapping[str, object], make: Callable[..., Any], given: Any) -> Any:
    """Return an object of Keras that `make` builds with the user's own classes."""
    if not own:
        return make(*given)
    saving = sys.modules["keras.saving"]
    named = {saving.get_registered_name(thing): thing for thing in own.values()}
    with saving.custom_object_scope({**own, **named}):
        return make(*given)


def no_shell() -> None:
    """Return None, like `get_ipython` outside of a notebook."""
