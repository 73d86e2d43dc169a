"""Implements `elasticdl data`: convert, analyze, count, inspect and repair files of records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click
from rich.table import Table
from rich.text import Text

from elasticdl.cli.terminal import Terminal, echo
from elasticdl.errors import DataError
from elasticdl.packages.data_tools.amounts import size
from elasticdl.packages.data_tools.analyze_command import analyze
from elasticdl.packages.data_tools.convert_command import convert, reader_params
from elasticdl.runtime.printable import one_line, printable

if TYPE_CHECKING:  # the commands import what they need, so that --help need not wait
    from elasticdl.data.base import DataReader, Records
    from elasticdl.job import Shard

_SHOWN_BYTES = 64
_SHOWN_VALUES = 6


@click.group(name="data")
def data() -> None:
    """Convert, analyze, count, inspect and repair files of records.

    SOURCE is a file, a folder, a glob, or several of these with commas between them.
    """


data.add_command(convert)
data.add_command(analyze)


@data.command()
@click.argument("source")
@reader_params
def count(source: str, params: str) -> None:
    """Count the records of SOURCE, by file (in a topic, by partition) and in all."""
    from elasticdl.data.open import open_reader
    from elasticdl.data.sources import stream_at

    if stream_at(source) is not None:
        _count_messages(source, params)
        return
    counts: Counter[str] = Counter()
    for shard in open_reader(source, params).shards():
        counts[shard.name] += shard.num_records
    table = Table("file", box=None, pad_edge=False)
    table.add_column("records", justify="right")
    for name, num_records in counts.items():
        table.add_row(Text(name, overflow="fold"), f"{num_records:,}")
    if len(counts) != 1:
        table.add_section()
        table.add_row(f"{len(counts):,} files", f"{counts.total():,}")
    Terminal().print(table)


def _count_messages(source: str, params: str) -> None:
    """Count the messages of a topic by reading it: no index says which positions have a record."""
    from elasticdl.data.open import open_reader

    reader = open_reader(source, f"{params};bad_messages=aside")
    table = Table("partition", box=None, pad_edge=False)
    rows, total = [], [0, 0, 0]
    for shard in reader.shards():
        records = unreadable = 0
        for chunk in reader.read(shard):
            records += len(chunk)
            unreadable += len(chunk.aside)
        counts = [records, unreadable, shard.num_records]
        total = [one + other for one, other in zip(total, counts, strict=True)]
        rows.append((shard.name, counts))
    for name in ("records", "unreadable", "positions"):
        table.add_column(name, justify="right")
    for name, counts in rows:
        table.add_row(Text(name, overflow="fold"), *(f"{count:,}" for count in counts))
    if len(rows) != 1:
        table.add_section()
        table.add_row(f"{len(rows):,} partitions", *(f"{count:,}" for count in total))
    Terminal().print(table)


@data.command()
@click.argument("source")
@click.option(
    "--records",
    "num_shown",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="How many records of each file to show.",
)
@click.option("--verify", is_flag=True, help="Read everything and check all checksums.")
@reader_params
@click.pass_context
def inspect(context: click.Context, source: str, num_shown: int, verify: bool, params: str) -> None:
    """Show each file of SOURCE: size, blocks, index, torn tail and first records.

    The exit code is 1 if a file is torn or damaged. For a source without files, such as a database,
    the command shows the columns and the first records.
    """
    from elasticdl.data.open import format_of_whole
    from elasticdl.data.paths import expand_paths

    whole = format_of_whole(source, params)
    if whole:
        _inspect_whole(source, whole, num_shown, verify, params)
        return
    are_whole = [_inspect(path, num_shown, verify, params) for path in expand_paths(source)]
    context.exit(0 if all(are_whole) else 1)


def _inspect(path: str, num_shown: int, verify: bool, params: str) -> bool:
    """Show one file; return whether it is whole."""
    from elasticdl.data.open import format_of
    from elasticdl.data.params import Params
    from elasticdl.data.remote import size_of

    facts: dict[str, str] = {}
    records: list[str] = []
    problem = ""
    try:
        format_name = Params(params).text("format", "") or format_of([path])
        facts["format"] = format_name
        facts["size"] = size(size_of(path))
        if format_name == "recordio":
            problem = _recordio_facts(path, facts, verify)
        else:
            _other_facts(path, facts, params)
        records = _first_records(path, params, num_shown, format_name)
        if verify and format_name != "recordio":
            _read_all(path, params)
    except DataError as error:
        problem = str(error)
    _print_facts(path, facts, records, problem)
    return not problem


def _inspect_whole(
    source: str, format_name: str, num_shown: int, verify: bool, params: str
) -> None:
    """Show a source that is not a list of files; a problem of the source is raised."""
    from elasticdl.data.base import HasHoles
    from elasticdl.data.open import open_reader

    reader = open_reader(source, params)
    shards = reader.shards()
    total = sum(shard.num_records for shard in shards)
    facts = {
        "format": format_name,
        "positions" if isinstance(reader, HasHoles) else "records": f"{total:,}",
        "shards": f"{len(shards):,}",
    } | _columns(reader)
    if verify:
        _read_all(source, params)
    first = [shard for shard in shards if shard.num_records][:1]  # a partition may be empty
    _print_facts(source, facts, _first_of(reader, first, num_shown), "")


def _columns(reader: DataReader) -> dict[str, str]:
    names, dtypes = reader.metadata.column_names, reader.metadata.column_dtypes
    named = ", ".join(f"{name} {dtypes[name]}" if name in dtypes else name for name in names)
    return {"columns": named} if named else {}


def _recordio_facts(path: str, facts: dict[str, str], verify: bool) -> str:
    """Find out the facts about a RecordIO file; return its problem, or ""."""
    from elasticdl._core import RecordReader
    from elasticdl.data.copies import readable

    reader = RecordReader(readable(path), allow_torn=True)
    blocks = reader.blocks()
    raw_bytes = sum(block.raw_bytes for block in blocks)
    stored_bytes = sum(block.stored_bytes for block in blocks)
    facts["records"] = f"{reader.num_records:,}"
    facts["blocks"] = f"{len(blocks):,}"
    if blocks:
        codecs = Counter(block.codec for block in blocks)
        facts["blocks"] += f" of {size(raw_bytes // len(blocks))} on average"
        facts["blocks by codec"] = ", ".join(f"{name}: {n:,}" for name, n in codecs.most_common())
        facts["ratio"] = f"{raw_bytes / max(1, stored_bytes):.2f}"
    facts["index"] = {
        "stored": "at the end of the file",
        "rebuilt": "missing; rebuilt from the blocks, since the writer has not closed the file",
    }[reader.index_state]
    if verify:
        reader.verify()
        facts["checksums"] = "all right"
    if reader.torn is None:
        return ""
    offset, what = reader.torn
    return (
        f"torn tail at offset {offset:,} ({what}); {reader.num_records:,} whole records precede "
        f"it, and `elasticdl data repair` keeps them"
    )


def _other_facts(path: str, facts: dict[str, str], params: str) -> None:
    from elasticdl._core import TFRecordReader
    from elasticdl.data.open import open_reader
    from elasticdl.data.tfrecord import unpacked

    reader = open_reader(path, params)
    facts["records"] = f"{sum(shard.num_records for shard in reader.shards()):,}"
    if facts["format"] == "tfrecord":
        index = f"{unpacked(path)}.idx"
        state = TFRecordReader(unpacked(path)).index_state
        places = {"in memory": state, "passed over": f"in memory, {index} is another user's"}
        facts["index"] = places.get(state, index)
    facts.update(_columns(reader))


def _first_records(path: str, params: str, num_shown: int, format_name: str) -> list[str]:
    from elasticdl._core import RecordReader
    from elasticdl.data.copies import readable
    from elasticdl.data.files import CHUNK_BYTES
    from elasticdl.data.open import open_reader

    if format_name == "recordio":  # also of a file whose tail is torn
        file = RecordReader(readable(path), allow_torn=True)
        end = min(num_shown, file.num_records)
        return [_readable(record) for record in file.read(0, end, CHUNK_BYTES)]
    reader = open_reader(path, params)
    # Reversed, so that the first shard of each name remains.
    by_name = {shard.name: shard for shard in reversed(reader.shards())}
    return _first_of(reader, list(by_name.values()), num_shown)


def _first_of(reader: DataReader, shards: list[Shard], num_shown: int) -> list[str]:
    from elasticdl.job import Shard

    shown: list[str] = []
    for shard in shards:
        first = Shard(shard.name, shard.start, min(shard.end, shard.start + num_shown))
        for records in reader.read(first):
            shown += _readable_all(records)
    return shown


def _readable_all(records: Records) -> list[str]:
    if not records.columns:
        return [_readable(record) for record in records.values]
    return [
        "  ".join(f"{name}={_cell(column[row])}" for name, column in records.columns.items())
        for row in range(len(records))
    ]


def _cell(value: Any) -> str:
    if isinstance(value, bytes):
        return _value(value)
    if getattr(value, "shape", ()):
        return _values(value.tolist())
    return _text(str(value)) or repr(value)[: 4 * _SHOWN_BYTES]


def _readable(record: bytes) -> str:
    """Show a record as the Example or the text that it is, or else its first bytes."""
    from elasticdl.packages.data_tools.example import decode_example

    features = decode_example(record)
    if features is not None:
        return "  ".join(f"{name}={_values(values)}" for name, values in features.items())
    dots = "..." if len(record) > _SHOWN_BYTES else ""
    found = f"{len(record):,} bytes: {record[:_SHOWN_BYTES].hex(' ')}{dots}"
    return _text(record.decode(errors="replace")) or (found if record else "")


def _text(text: str) -> str:
    """Return the start of a text in one line; "" if it has control characters."""
    if printable(text) != text:
        return ""
    dots = "..." if len(text) > 4 * _SHOWN_BYTES else ""
    return one_line(text[: 4 * _SHOWN_BYTES]).replace("\t", "\\t") + dots


def _values(values: list[Any]) -> str:
    shown = ", ".join(_value(value) for value in values[:_SHOWN_VALUES])
    if len(values) == 1:
        return shown
    dots = f", ... {len(values):,} in all" if len(values) > _SHOWN_VALUES else ""
    return f"[{shown}{dots}]"


def _value(value: Any) -> str:
    if isinstance(value, bytes):
        found = _text(value[:_SHOWN_BYTES].decode(errors="replace"))
        return found if found or not value else f"{len(value):,} bytes"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _read_all(path: str, params: str) -> None:
    from elasticdl.data.open import open_reader

    reader = open_reader(path, params)
    for shard in reader.shards():
        for _ in reader.read(shard):
            pass


def _print_facts(path: str, facts: dict[str, str], records: list[str], problem: str) -> None:
    from elasticdl.settings.reader_params import without_password

    console = Terminal()
    console.print(Text(without_password(path), style="bold"), soft_wrap=True)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    for name, value in facts.items():
        table.add_row(Text(f"  {name}", style="dim"), Text(value))
    for number, record in enumerate(records):
        table.add_row(Text(f"  record {number}", style="dim"), Text(record, overflow="fold"))
    console.print(table)
    if problem:
        console.print(Text(f"  problem: {problem}", style="red"), soft_wrap=True)


@data.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Change the file. Without --yes, only show the change.")
@click.pass_context
def repair(context: click.Context, file: Path, yes: bool) -> None:
    """Cut off the torn tail of a RecordIO or TFRecord FILE, and complete its index.

    All whole records are kept. A file with damage in its middle is left alone. The exit code is
    1 if there is something to repair and --yes is not given.
    """
    from elasticdl.data.open import format_of

    num_records, cut_bytes, is_needed = _repairer(format_of([str(file)]))(file, not yes)
    if not is_needed:
        echo(f"{file}: whole, {num_records:,} records; nothing to repair")
        return
    done = "cut off" if yes else "to cut off"
    echo(f"{file}: {num_records:,} whole records kept, {cut_bytes:,} bytes {done}")
    if not yes:
        echo("Nothing was changed: give --yes to repair the file.")
        context.exit(1)


def _repairer(format_name: str) -> Callable[[Path, bool], tuple[int, int, bool]]:
    from elasticdl._core import repair_tfrecord

    if format_name == "recordio":
        return _repair_recordio
    if format_name == "tfrecord":
        return repair_tfrecord
    raise DataError(f"a {format_name} file cannot be repaired, only RecordIO and TFRecord")


def _repair_recordio(file: Path, dry_run: bool) -> tuple[int, int, bool]:
    """Repair a file whose writer has not closed it; one that was closed has no torn tail."""
    from elasticdl._core import RecordReader, repair_recordio

    found = repair_recordio(file, True)
    (_, _, is_needed) = found
    reader = RecordReader(str(file), allow_torn=True)
    if is_needed and reader.index_state == "stored":
        reader.verify()  # a last block that is damaged is told, and not cut off
    return found if dry_run else repair_recordio(file, False)
