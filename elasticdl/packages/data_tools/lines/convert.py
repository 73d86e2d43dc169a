"""Writes lines of fields to folders of record files: all of them or nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from elasticdl.data.files import num_cores
from elasticdl.data.in_order import in_order
from elasticdl.errors import DataError
from elasticdl.packages.data_tools.convert import Target, staged_folder
from elasticdl.packages.data_tools.lines.files import PartFile, encoder, open_part
from elasticdl.packages.data_tools.lines.parse import BadLine, ParsedBlock, parse
from elasticdl.packages.data_tools.lines.schema import Schema
from elasticdl.packages.data_tools.lines.source import read_blocks
from elasticdl.packages.data_tools.lines.split import Split

TRAINING, VALIDATION, ALL = "train", "val", ""


@dataclass(frozen=True, slots=True)
class Errors:
    """The treatment of lines that are not records.

    limit: This many are left out and reported to `on_skipped`; one more ends the conversion.
    """

    limit: int = 0
    on_skipped: Callable[[BadLine], None] = lambda line: None


@dataclass(frozen=True, slots=True)
class Converted:
    """The result: records by the folder's name, files, and lines that were left out."""

    num_records: dict[str, int]
    num_files: int
    num_skipped: int


def convert_lines(
    paths: Sequence[str],
    schema: Schema,
    target: Target,
    split: Split | None,
    errors: Errors,
    on_progress: Callable[[int], None],
    num_threads: int | None = None,
) -> Converted:
    """Write the records of text files to a new folder, in their order.

    Args:
        paths: Text files, plain or compressed.
        schema: The fields of their lines.
        target: `path` is the folder; with a split it has the folders `train` and `val`.
        split: Chooses the records for validation.
        errors: The treatment of lines that are not records.
        on_progress: Called with the number of bytes of the files that were processed.
        num_threads: The number of threads that parse and encode; each waits only for the reader.

    Raises:
        DataError: A file cannot be read, or has more bad lines than the limit.
    """
    names = (TRAINING, VALIDATION) if split else (ALL,)
    with _writing(target.path) as folder, ExitStack() as stack:
        outputs = {name: _Output(replace(target, path=folder / name)) for name in names}
        for output in outputs.values():
            output.target.path.mkdir(exist_ok=True)
            stack.push(output.leave)
        # The pool is entered last, so its threads end before the open files are discarded.
        pool = stack.enter_context(ThreadPoolExecutor(num_threads or num_cores(), "convert"))
        num_skipped = _Counter(errors)
        blocks = read_blocks(paths, schema.header, partial(_check_header, schema))
        parsed = in_order(pool, partial(parse, schema=schema), blocks)
        pieces = _pieces(parsed, split, outputs, num_skipped, on_progress)
        encode = encoder(target)
        for (name, ends_file, rows), piece in in_order(
            pool, lambda piece: (piece, encode(piece[2])), pieces
        ):
            outputs[name].write(piece, ends_file, rows)
        for output in outputs.values():
            output.close()
        _require_records(outputs, paths, num_skipped.count)
    return Converted(
        {name: output.num_records for name, output in outputs.items()},
        sum(output.num_files for output in outputs.values()),
        num_skipped.count,
    )


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Give a folder to write to, as `staged_folder`; an error of the disk names the folder."""
    try:
        with staged_folder(path) as folder:
            yield folder
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def _check_header(schema: Schema, path: str, header: bytes) -> None:
    names = header.decode(errors="replace").split(schema.delimiter)
    if len(names) != len(schema.fields):
        raise DataError(
            f"{path}: its header has {len(names)} fields, expected {len(schema.fields)}: "
            f"{', '.join(schema.fields)}"
        )
    for number, (name, field) in enumerate(zip(names, schema.fields, strict=True), 1):
        if name != field and name in schema.kinds:
            raise DataError(
                f"{path}: field {number} of its header is {name}, in the schema it is {field}; "
                "columns have one order in both"
            )


@dataclass(slots=True)
class _Counter:
    """Counts the lines left out, up to the limit."""

    errors: Errors
    count: int = 0

    def note(self, bad: Sequence[BadLine]) -> None:
        for line in bad:
            if self.count == self.errors.limit:
                raise DataError(self._message(line))
            self.count += 1
            self.errors.on_skipped(line)

    def _message(self, line: BadLine) -> str:
        if self.errors.limit == 0:
            return f"{line}; nothing was written (--on_error=skip leaves such lines out)"
        return (
            f"{line}; that is one more than the {self.count:,} lines that may be left out "
            "(--error_limit); nothing was written"
        )


_Piece = tuple[str, bool, pa.Table]  # name of the output, whether its file ends, records


def _pieces(
    blocks: Iterable[ParsedBlock],
    split: Split | None,
    outputs: dict[str, _Output],
    skipped: _Counter,
    on_progress: Callable[[int], None],
) -> Iterator[_Piece]:
    for block in blocks:
        skipped.note(block.bad)
        for name, rows in _dealt(block, split).items():
            yield from outputs[name].cut(name, rows)
        on_progress(block.num_bytes)


def _dealt(block: ParsedBlock, split: Split | None) -> dict[str, pa.Table]:
    """Return the records of a block by the name of their output."""
    if split is None:
        return {ALL: block.table}
    chosen = split.is_validation(block.rows)
    return {
        TRAINING: block.table.filter(pa.array(~chosen)),
        VALIDATION: block.table.filter(pa.array(chosen)),
    }


@dataclass(slots=True)
class _Output:
    """A folder that gets files of `records_per_file` records.

    num_cut: The number of records given out to be encoded; it runs ahead of the records written.
    """

    target: Target
    num_cut: int = 0
    num_records: int = 0
    num_files: int = 0
    part: PartFile | None = dataclasses.field(default=None, init=False)

    def cut(self, name: str, rows: pa.Table) -> Iterator[_Piece]:
        """Cut records at the ends of files."""
        limit = self.target.records_per_file
        start = 0
        while start < rows.num_rows:
            room = rows.num_rows if limit is None else limit - self.num_cut % limit
            piece = rows.slice(start, room)
            self.num_cut += piece.num_rows
            start += piece.num_rows
            yield name, limit is not None and self.num_cut % limit == 0, piece

    def write(self, piece: object, ends_file: bool, rows: pa.Table) -> None:
        """Write a piece to the open file, or begin a new one."""
        if self.part is None:
            path = self.target.path / f"part-{self.num_files:05d}.{self.target.format}"
            self.part = open_part(self.target, path, rows.schema)
            self.num_files += 1
        self.part.write(piece)
        self.num_records += rows.num_rows
        if ends_file:
            self.close()

    def close(self) -> None:
        """End the open file."""
        part, self.part = self.part, None
        if part is not None:
            part.close()

    def leave(self, kind: object, value: object, traceback: object) -> bool:
        """Discard the open file, if it was not ended."""
        if self.part is not None:
            self.part.discard()
        return False


def _require_records(outputs: dict[str, _Output], paths: Sequence[Path | str], bad: int) -> None:
    for name, output in outputs.items():
        if output.num_records == 0:
            what = f"for {name} " if name else ""
            raise DataError(
                f"{paths[0]}: not converted, because there are no records {what}"
                f"({bad:,} lines were left out)"
            )
