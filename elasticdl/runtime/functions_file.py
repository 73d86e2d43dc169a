"""Functions of a program in a file, as the processes of its job load them.

To load a pickle is to run what is in it. So a file is loaded only if it is the user's own, and has
the SHA-256 that the model file beside it says. `packages/notebooks/functions.py` writes both. A
process of a job whose secret is made by the command that starts it also wants a proof by that
secret: then the file is the one that was there when the job was started.
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

from elasticdl.errors import ModelError
from elasticdl.runtime.secret_files import private_opener, user_name

PYTHON = "{}.{}".format(*sys.version_info)
"""The version that code in a file is for."""

PROOF_FILE = "functions.proof"
"""In the folder of a job: by the job's secret, the files that its processes may load."""

_FILES = "*-????????????????.pickle"  # see `cli/interactive/functions.py`
_trusted: tuple[Path, bytes] | None = None  # where the proof of this process' job is, and its key

_loading: ContextVar[dict[str, types.ModuleType]] = ContextVar("_loading")


def load(model_file: str, name: str, digest: str, python: str) -> dict[str, Any]:
    """Return the functions of a file beside a model file, by their names.

    Args:
        model_file: The path of the model file.
        name: Of the file of the functions.
        digest: Its SHA-256.
        python: The version of Python that has written it.

    Raises:
        ModelError: It is another's, was changed, or needs another Python.
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
        sys.modules.setdefault(module_name, module)
    for file, lines in sources.items():  # TensorFlow's AutoGraph reads them; so do tracebacks
        linecache.cache.setdefault(file, (sum(map(len, lines)), None, lines, file))
    return functions


def prove(model_zoo: Path, job_dir: Path, token: bytes) -> None:
    """Note which files of functions the processes of a job may load: those of its model folder.

    Args:
        model_zoo: The folder of the model file.
        job_dir: The folder of the job.
        token: The secret of the job.
    """
    key, proofs = _key(token), []
    for path in sorted(model_zoo.glob(_FILES)):
        # What cannot be read here is another user's, and is not loaded.
        with contextlib.suppress(OSError), path.open("rb") as file:
            proofs.append(_proof(key, hashlib.file_digest(file, "sha256").hexdigest()))
    place = job_dir / PROOF_FILE
    place.unlink(missing_ok=True)
    if proofs:
        with open(place, "wb", opener=private_opener) as file:
            file.write(b"\n".join(proofs))


def trust(job_dir: Path, token: bytes) -> None:
    """Have this process load only what `prove` has noted for its job."""
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
    """Return what is in a file of ours that nobody has changed."""
    try:
        with path.open("rb") as file:
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
    """Say why a module lacks a name; its `__getattr__`."""
    if name in why:
        raise AttributeError(
            f"{module}.{name} could not be given to this process ({why[name]}): make it in the "
            "function that uses it"
        )
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def same(value: object) -> object:
    """Return what it is given."""
    return value


def with_own_classes(own: Mapping[str, object], make: Callable[..., Any], given: Any) -> Any:
    """Return an object of Keras, with classes of the user's."""
    if not own:
        return make(*given)
    saving = sys.modules["keras.saving"]
    named = {saving.get_registered_name(thing): thing for thing in own.values()}
    with saving.custom_object_scope({**own, **named}):
        return make(*given)


def no_shell() -> None:
    """Return what `get_ipython` does where there is no notebook."""
