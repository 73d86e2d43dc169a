"""The capturing process, as the process that started it controls it."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import time
from pathlib import Path

from elasticdl.config import JobConfig
from elasticdl.errors import DataError
from elasticdl.packages.streams.capture.chunks import chunks_in, end_of
from elasticdl.packages.streams.capture.settings import folder_of

log = logging.getLogger(__name__)

FAILURE_FILE = "failure"
"""The file in the folder of the chunks that says why the process ended, if it could tell."""
CERTAIN = "certain: "
"""The prefix of the reason if another attempt would fail in the same way."""
_MOST_ENDS = 4  # of processes one after the other that have captured nothing
_PAUSE_SECONDS = 0.25  # and as much more each time
_END_SECONDS = 5.0  # that a process gets to end what it has started
_LOOK_SECONDS = 0.05


class CaptureProcess:
    """Keeps a process running that captures the source of a job.

    The process reads the job's settings and then the trained positions from its standard input. It
    ends when its standard input ends, and so when this process dies.
    """

    def __init__(self, config: JobConfig) -> None:
        self._config, self._folder = config, folder_of(config)
        self._process: subprocess.Popen[bytes] | None = None
        self._num_ends = 0
        self._end = -1  # of the chunks, when a process was started last
        self._not_before = 0.0

    @property
    def has_ended(self) -> bool:
        """Return whether the process that was started has ended."""
        return self._process is not None and self._process.poll() is not None

    def keep_running(self) -> None:
        """Start a process if none runs.

        Raises:
            DataError: Several processes have ended one after the other without a new record.
        """
        if self.has_ended:
            self._ended()
        if self._process is None and time.monotonic() >= self._not_before:
            self._start()

    def trained(self, position: int) -> None:
        """Tell the process how far the job is."""
        process = self._process
        if process is None or process.stdin is None:
            return
        with contextlib.suppress(OSError):  # it has ended, which is seen at the next look
            process.stdin.write(b"%d\n" % position)
            process.stdin.flush()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:  # at its end the process ends what it has started, and itself
            with contextlib.suppress(OSError):
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        # The process keeps nothing that is not on the disk, so it may be killed at any time.
        process.kill()
        process.wait()

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        # An old reason must not be read as the reason of the next end.
        (self._folder / FAILURE_FILE).unlink(missing_ok=True)
        chunks = chunks_in(self._folder)
        end = chunks[-1].end if chunks else 0
        # Any progress since the last start forgives the ends before it.
        if end > self._end:
            self._end, self._num_ends = end, 0
        words = [sys.executable, "-m", "elasticdl.packages.streams.capture"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(self._config.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()

    def _ended(self) -> None:
        assert self._process is not None
        code, why = self._process.returncode, ""
        self.close()
        # A source that was read to its end has no failure to report.
        if end_of(self._folder) is not None:
            return
        with contextlib.suppress(FileNotFoundError):
            why = (self._folder / FAILURE_FILE).read_text()
        words = why.removeprefix(CERTAIN) or f"the process that reads it has ended (code {code})"
        self._num_ends += 1
        chunks = chunks_in(self._folder)
        if chunks and chunks[-1].end > self._end:
            self._num_ends = 0
        if why.startswith(CERTAIN) or self._num_ends >= _MOST_ENDS:
            raise DataError(f"the source cannot be read: {words}", is_certain=True)
        log.warning("the source is read again from where it was: %s", words)
        # A source that fails at once must not keep a processor busy with restarts.
        self._not_before = time.monotonic() + _PAUSE_SECONDS * self._num_ends


def capture_all(config: JobConfig) -> Path:
    """Capture the source of a job to its end; return the folder of the chunks.

    Raises:
        DataError: The source cannot be read.
    """
    folder, process = folder_of(config), CaptureProcess(config)
    try:
        while end_of(folder) is None:
            process.keep_running()
            time.sleep(_LOOK_SECONDS)
    finally:
        process.close()
    return folder
