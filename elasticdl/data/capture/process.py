"""The process that captures, as the one that started it sees it."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import time
from pathlib import Path

from elasticdl.config import JobConfig
from elasticdl.data.capture.chunks import chunks_in, end_of
from elasticdl.data.capture.settings import folder_of
from elasticdl.errors import DataError

log = logging.getLogger(__name__)

FAILURE_FILE = "failure"
"""Why the process ended, if it could tell, in the folder of the chunks."""
CERTAIN = "certain: "
"""What its words begin with where another try would end in the same way."""
_MOST_ENDS = 4  # of processes one after the other that have captured nothing
_PAUSE_SECONDS = 0.25  # and as much more each time
_LOOK_SECONDS = 0.05


class CaptureProcess:
    """Keeps a process that captures the source of a job.

    It has the job's settings, and then the positions that are trained, on its standard input. When
    that ends, because this process does, so does it.
    """

    def __init__(self, config: JobConfig) -> None:
        self._config, self._folder = config, folder_of(config)
        self._process: subprocess.Popen[bytes] | None = None
        self._num_ends = 0
        self._end = -1  # of the chunks, when a process was started last
        self._not_before = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether a process was started that has ended since."""
        return self._process is not None and self._process.poll() is not None

    def keep_running(self) -> None:
        """Start a process, if there is none.

        Raises:
            DataError: Some have ended, one after the other, that have captured nothing; says why.
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
        process.kill()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        process.wait()

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / FAILURE_FILE).unlink(missing_ok=True)
        chunks = chunks_in(self._folder)
        end = chunks[-1].end if chunks else 0
        if end > self._end:
            self._end, self._num_ends = end, 0
        words = [sys.executable, "-m", "elasticdl.data.capture"]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(self._config.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()

    def _ended(self) -> None:
        assert self._process is not None
        code, why = self._process.returncode, ""
        self.close()
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
        self._not_before = time.monotonic() + _PAUSE_SECONDS * self._num_ends


def capture_all(config: JobConfig) -> Path:
    """Capture the source of a job to its end; return the folder of the chunks.

    Raises:
        DataError: It cannot be read.
    """
    folder, process = folder_of(config), CaptureProcess(config)
    try:
        while end_of(folder) is None:
            process.keep_running()
            time.sleep(_LOOK_SECONDS)
    finally:
        process.close()
    return folder
