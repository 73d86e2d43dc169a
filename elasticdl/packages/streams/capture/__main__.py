"""`python -m elasticdl.packages.streams.capture` reads the source of a job into chunks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, NoReturn

from elasticdl.config import JobConfig
from elasticdl.data.custom import call_custom_reader
from elasticdl.data.params import Params
from elasticdl.errors import ConfigError, DataError, ElasticdlError, ModelError
from elasticdl.model_spec import load_model_spec
from elasticdl.packages.streams.capture.capture import Capture
from elasticdl.packages.streams.capture.command import CommandSource
from elasticdl.packages.streams.capture.process import CERTAIN, FAILURE_FILE
from elasticdl.packages.streams.capture.settings import folder_of, is_captured_as_it_trains
from elasticdl.packages.streams.capture.source import CapturedSource, as_source
from elasticdl.packages.streams.settings import StreamsSection

_MOST_BYTES_AHEAD = 256 << 20


def main() -> None:
    """Capture the source of the job whose settings are the first line of the standard input."""
    # Not `sys.stdin`: Python aborts at its end if a thread still waits in that object.
    control = open(0, "rb", closefd=False)  # noqa: SIM115 - for as long as the process lives
    config = JobConfig.model_validate_json(control.readline())
    folder = folder_of(config)
    with open(folder / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until one that was left behind has ended
        source = None
        try:
            most = _MOST_BYTES_AHEAD if is_captured_as_it_trains(config) else None
            source = _source(config)
            capture = Capture(
                folder, source, most, failed=lambda error: _end(folder, source, error)
            )
            threading.Thread(target=_listen, args=(control, capture, source), daemon=True).start()
            capture.run()
        except Exception as error:
            _end(folder, source, error)


def _source(config: JobConfig) -> CapturedSource:
    own = config.of(StreamsSection)
    if own.reader_command:
        return CommandSource(own.reader_command, own.reader_framing)
    spec = load_model_spec(config.model)
    if spec.custom_data_reader is None:
        raise ModelError(
            f"--reader_state=true: the model file has no {config.model.custom_data_reader}"
        )
    params = Params(config.data.data_reader_params).all()
    return as_source(call_custom_reader(spec.custom_data_reader, config.data.training_data, params))


def _listen(control: IO[bytes], capture: Capture, source: CapturedSource) -> None:
    """Note how far the job is; end this process when no process can tell it any more."""
    for line in control:
        capture.trained(int(line))
    # The standard input has ended, so the process that started this one is gone. The source may
    # block for ever, so nothing is closed in order.
    _exit(source)


def _exit(source: CapturedSource | None) -> NoReturn:
    if isinstance(source, CommandSource):
        source.end()
    os._exit(1)


def _end(folder: Path, source: CapturedSource | None, error: Exception) -> None:
    """End this process; leave the reason in the file that the starting process reads."""
    traceback.print_exception(error)
    is_certain = isinstance(error, ModelError | ConfigError) or (
        isinstance(error, DataError) and error.is_certain
    )
    words = str(error) if isinstance(error, ElasticdlError) else _described(error)
    with contextlib.suppress(OSError):
        (folder / FAILURE_FILE).write_text((CERTAIN if is_certain else "") + words)
    sys.stderr.flush()
    # The main thread may block in the source, so the process ends without it.
    _exit(source)


def _described(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"it raised {type(error).__name__}: {error} ({last.filename}:{last.lineno})"


if __name__ == "__main__":
    main()
