"""A command that prints records, as a source."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Literal

from elasticdl.errors import ConfigError, DataError

Framing = Literal["lines", "framed"]
_BLOCK_BYTES = 1 << 20
_MOST_BYTES = 1 << 30  # of a record
_LENGTH = struct.Struct("<I")


class CommandSource:
    """Starts a command and reads the records that it prints.

    After a restart of the capture the command starts anew, and the records that were read before
    are skipped. A check sum proves that they are the same records.

    Args:
        command: Is run by bash. If one part of a pipeline fails, the command has failed.
        framing: `lines`: each line is a record, without its newline. `framed`: four bytes with a
            record's length, lowest byte first, then the record.
    """

    def __init__(self, command: str, framing: Framing = "lines") -> None:
        self._command = command
        self._cut: Callable[[bytes], tuple[list[bytes], bytes]] = {
            "lines": _lines,
            "framed": _framed,
        }[framing]
        self._is_framed = framing == "framed"
        self._num_records = self._check = 0
        self._process: subprocess.Popen[bytes] | None = None

    def state(self) -> dict[str, int]:
        """Return how many records were read, and their check sum."""
        return {"records": self._num_records, "check": self._check}

    def restore(self, state: Any) -> None:
        """Skip the records that were read before."""
        self._num_records, self._check = state["records"], state["check"]

    def read(self) -> Iterator[list[bytes]]:
        """Yield the records that the command prints, as they come.

        Raises:
            ConfigError: There is no bash.
            DataError: The command fails, prints half a record, or prints other records than before.
        """
        bash = shutil.which("bash")
        if bash is None:
            raise ConfigError("--reader_command is run by bash, which this machine does not have")
        # Without pipefail, a failure in the middle of a pipeline would look like the end of the
        # data.
        words = [bash, "-o", "pipefail", "-c", self._command]
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0
        ) as process:
            self._process = process
            try:
                yield from self._new(self._records(process))
            finally:
                self.end()

    def end(self) -> None:
        """End the command, if it runs, and what it has started: it may print nothing for long."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _new(self, blocks: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
        """Yield the records behind those that were read before."""
        left, expected, check = self._num_records, self._check, 0
        for records in blocks:
            old = records[:left]
            if old:
                check = _check_of(old, check)
                # The check sum is known only when all old records have passed. No new record is
                # yielded before.
                left -= len(old)
                if left == 0 and check != expected:
                    raise DataError(self._changed(), is_certain=True)
            if new := records[len(old) :]:
                self._check = _check_of(new, self._check)
                self._num_records += len(new)
                yield new
        if left:
            raise DataError(self._changed(), is_certain=True)

    def _changed(self) -> str:
        return (
            f"the command was started again, and its first {self._num_records:,} records are not "
            "those that were taken before: expected a command that prints the same each time; a "
            "source that cannot be read twice needs a reader with state()"
        )

    def _records(self, process: subprocess.Popen[bytes]) -> Iterator[list[bytes]]:
        """Yield all records; the rest after the last newline only if the command succeeded."""
        file = process.stdout
        assert file is not None
        # A large record comes in many blocks, and is cut out when all of it has come.
        uncut = bytearray()
        for block in iter(lambda: _read_some(file), b""):
            uncut += block
            if self._is_framed:
                is_whole = len(uncut) >= _least(uncut)
            elif not (is_whole := b"\n" in block):
                _require_end(len(uncut))
            if not is_whole:
                continue
            records, rest = self._cut(bytes(uncut))
            uncut = bytearray(rest)
            if records:
                yield records
        rest = bytes(uncut)
        # A command that failed may have stopped in the middle of a line, so its rest is no record.
        if code := process.wait():
            raise DataError(
                f"the command ended with exit code {code}, after {self._num_records:,} records; "
                "what it wrote to its stderr is in the job's log"
            )
        if rest and self._is_framed:
            raise DataError(
                f"the command ended within a record, {len(rest)} bytes after the last whole one"
            )
        if rest:
            yield [rest]


def _read_some(file: IO[bytes]) -> bytes:
    """Return the bytes that are there, as soon as there are any."""
    return file.read1(_BLOCK_BYTES)  # type: ignore[attr-defined,no-any-return]


def _lines(data: bytes) -> tuple[list[bytes], bytes]:
    *lines, rest = data.split(b"\n")
    return lines, rest


def _require_end(num_bytes: int) -> None:
    """Refuse bytes without the end of a line; else a command that prints none fills the memory."""
    if num_bytes > _MOST_BYTES:
        raise DataError(
            f"the command has printed {num_bytes:,} bytes without the end of a line: expected "
            "lines, or --reader_framing=framed for other records",
            is_certain=True,
        )


def _least(start: bytearray) -> int:
    """Return how many bytes the record that begins here has in its frame, as far as is known."""
    if len(start) < _LENGTH.size:
        return _LENGTH.size
    length: int = _LENGTH.unpack_from(start)[0]
    return _LENGTH.size + length if length <= _MOST_BYTES else 0  # 0: it is refused at once


def _framed(data: bytes) -> tuple[list[bytes], bytes]:
    records, at = [], 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        # A wrong framing reads text as a length. Without the limit the rest of the output would be
        # one record.
        if length > _MOST_BYTES:
            raise DataError(
                f"the command says that a record has {length:,} bytes: expected a length of four "
                "bytes, the lowest first, before each record (--reader_framing=framed)",
                is_certain=True,
            )
        end = at + _LENGTH.size + length
        if end > len(data):
            break
        records.append(data[at + _LENGTH.size : end])
        at = end
    return records, data[at:]


def _check_of(records: list[bytes], check: int) -> int:
    """Return the check sum of records after others; it includes where each record ends."""
    lengths = itertools.chain.from_iterable((_LENGTH.pack(len(each)), each) for each in records)
    return zlib.crc32(b"".join(lengths), check)
