"""`python -m elasticdl.master`: the master process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Callable
from dataclasses import replace

if __name__ == "__main__":
    gc.disable()  # what is imported stays; process.start has it looked for again

from elasticdl.config import JobConfig
from elasticdl.data.base import DataReader, Stream
from elasticdl.data.open import open_reader
from elasticdl.data.shuffled import with_shuffle
from elasticdl.data.sources import is_stream, read_once_of, reader_params
from elasticdl.data.split import split
from elasticdl.errors import StateError, TakenOverError, UnusableStateError
from elasticdl.job import PsRoute, Role, Shard
from elasticdl.launchers import choose
from elasticdl.master.durable import JobData, open_job
from elasticdl.master.effects import ReplicaAccess, ReplicaClient
from elasticdl.master.master import Master
from elasticdl.model_spec import load_model_spec
from elasticdl.runtime import process
from elasticdl.runtime.credentials.files import TlsFiles
from elasticdl.runtime.ending import end_now
from elasticdl.runtime.process import ProcessArguments
from elasticdl.state.open import open_state

_PS_DEADLINE_SECONDS = 10.0  # limit to reach a replica; its work may then take longer
_LEAVE_SECONDS = 60.0  # wait for the master before, which may still be leaving
_MASTER_ID = -1  # no worker's


def main() -> None:
    """Run the job in a folder, or go on with it."""
    try:
        arguments = process.start(Role.MASTER)
    except OSError as error:  # the machine is short of memory, files or the like
        _tell(error)
        end_now(process.OWN_FAILURE_EXIT_CODE)
    try:
        code = asyncio.run(_run(arguments))
        is_final = True
    except _LostError as lost:
        _tell(lost.error)
        code, is_final = process.OWN_FAILURE_EXIT_CODE, False
    except Exception as error:
        _tell(error)
        # A job that cannot begin here cannot begin with the next master either: that end is final.
        # It is not final if another master has the journal, or if the journal may be written later.
        is_final = isinstance(error, UnusableStateError) or not isinstance(error, StateError)
        is_decided = is_final or isinstance(error, TakenOverError)
        code = 1 if is_decided else process.OWN_FAILURE_EXIT_CODE
    if is_final:
        parts = choose.parts_of(arguments.config)
        parts.tell_end(arguments.config, arguments.job_dir, code)
    end_now(code)


class _LostError(Exception):
    """The master of a job that runs has failed: the next one goes on with it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _tell(error: Exception) -> None:
    sys.excepthook(type(error), error, error.__traceback__)


async def _run(arguments: ProcessArguments) -> int:
    state = open_state(arguments.config.cluster.state, arguments.job_dir, _LEAVE_SECONDS)
    tls, authority = arguments.tls, None
    if arguments.tls_dir is not None:
        from elasticdl.runtime.credentials.job_authority import JobAuthority

        cluster = arguments.config.cluster
        life_seconds = cluster.tls_certificate_seconds
        authority = JobAuthority.of_job(arguments.tls_dir, cluster.job_name, life_seconds)
        tls = authority.issue(Role.MASTER, 0)
    job, is_new = open_job(state, arguments.config, lambda: load_data(arguments.config))
    parts = choose.parts_of(arguments.config)
    master = Master(
        job,
        is_new,
        arguments.job_dir,
        arguments.token,
        make_launcher=lambda on_event: parts.launcher(
            arguments.config, arguments.job_dir, on_event, authority
        ),
        make_access=lambda route, role: ReplicaAccess(
            route, _connect(arguments.token, tls, is_copy=role is Role.WORKER)
        ),
        listening=arguments.listening,
        tls=tls,
        authority=authority,
        stream=_stream(arguments.config, has_begun=True),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        reason = f"the master was asked to end ({number.name})"
        asyncio.get_running_loop().add_signal_handler(number, master.leave, reason)
    renewal: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if authority is not None:
        renewal = process.renewal(replace(arguments, tls=tls), Role.MASTER, authority.sign_own)
    with renewal:
        try:
            return await master.run()
        except TakenOverError:
            raise
        except Exception as error:
            # A new job that nobody has seen may fail for good. A job that runs goes on with the
            # next master.
            if is_new and not master.has_begun:
                raise
            raise _LostError(error) from error


def load_data(config: JobConfig) -> JobData:
    """List the shards of the data that a job names.

    Raises:
        DataError: A file cannot be opened.
        JobFailedError: The data that training is to be evaluated on has no records.
        ModelError: The model file, which may bring its own reader, cannot be loaded.
    """
    custom_data_reader = _custom_data_reader(config)

    def reader(path: str) -> DataReader:
        return open_reader(path, reader_params(config, path), custom_data_reader)

    def shards(path: str) -> tuple[Shard, ...]:
        return tuple(reader(path).shards()) if path else ()

    data = config.data
    training: tuple[Shard, ...] = ()
    validation = shards(data.validation_data) if config.command != "predict" else ()
    if (stream := _stream(config)) is not None:
        training = tuple(stream.beginning())
    elif config.command == "train":
        if (kept := read_once_of(config)) is not None:
            kept.read_to_end(config)
        source = reader(data.training_data) if kept is None else kept.reader(config)
        if data.validation_split:
            source, held_out = split(source, data)
            validation = tuple(held_out.shards())
        training = tuple(with_shuffle(source, config.training).shards())
    return JobData(
        training=training,
        validation=validation,
        prediction=shards(data.prediction_data) if config.command == "predict" else (),
    ).checked(config)


def _stream(config: JobConfig, has_begun: bool = False) -> Stream | None:
    """Return the stream that a job trains on; None if all records are there at the begin.

    A job that has begun waits for brokers that refuse.
    """
    if not is_stream(config):
        return None
    if (kept := read_once_of(config)) is not None:
        return kept.stream(config)
    place = config.data.training_data
    reader = open_reader(place, reader_params(config, place, has_begun))
    return reader if isinstance(reader, Stream) else None


def _custom_data_reader(config: JobConfig) -> Callable[..., object] | None:
    """Return the model file's own reader, if it may have one.

    The file is imported only if its text names a reader. The import loads the file's framework,
    and the master would wait some seconds for it.
    """
    model = config.model
    if model.script is not None:
        return None
    path = model.model_zoo.joinpath(*model.model_def.split(".")[:-1])
    for file in (path.with_name(path.name + ".py"), path / "__init__.py"):
        if file.is_file():
            source = file.read_text(errors="replace")
            if not any(w in source for w in (model.custom_data_reader, "import *", "__getattr__")):
                return None
    return load_model_spec(model).custom_data_reader


def _connect(
    token: bytes, tls: TlsFiles | None, is_copy: bool
) -> Callable[[PsRoute, bool], ReplicaClient]:
    from elasticdl._core import PsClient

    return lambda route, whole_job: PsClient.connect(
        route.addresses,
        token,
        _MASTER_ID,
        _PS_DEADLINE_SECONDS,
        whole_job=whole_job,
        layout=route.layout,
        tls=tls.as_tuple() if tls else None,
        is_copy=is_copy,
    )


if __name__ == "__main__":
    main()
