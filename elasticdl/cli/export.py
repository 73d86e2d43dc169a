"""Implements `elasticdl export`, which writes the tables of a checkpoint as Parquet."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from elasticdl.cli.terminal import LocalPath, Terminal
from elasticdl.config import CheckpointSection


def _help(field: str) -> str:
    return CheckpointSection.model_fields[field].description or ""


@click.command(name="export")
@click.option(
    "--checkpoint_dir_for_init",
    "checkpoint",
    type=str,
    required=True,
    help="The checkpoint: a version folder, or its parent (the newest version); a path or URL.",
)
@click.option(
    "--export_tables",
    "directory",
    type=LocalPath(path_type=Path),
    required=True,
    help="Folder to write to. It must be new or empty.",
)
@click.option(
    "--export_threshold",
    "threshold",
    type=click.FloatRange(min=0),
    help=_help("export_threshold"),
)
@click.option(
    "--export_since_version",
    "since_version",
    type=click.IntRange(min=0),
    help=_help("export_since_version"),
)
def export(
    checkpoint: str, directory: Path, threshold: float | None, since_version: int | None
) -> None:
    """Write the tables of a checkpoint as Parquet.

    A table is a folder of files with the columns key and weights. The command loads the part of
    one ps replica at a time.
    """
    # `--help` need not wait for these imports.
    import json

    from elasticdl.checkpoints.exports import write_tables
    from elasticdl.checkpoints.remote import restore
    from elasticdl.checkpoints.versions import MANIFEST, resolve
    from elasticdl.cli.preflight import check_new_folder
    from elasticdl.locations import parse, reaching

    source = resolve(parse(checkpoint))
    check_new_folder("export_tables", directory)
    with reaching(source):
        manifest = (source / MANIFEST).read_bytes()
    # `restore` reports damage of the manifest; here the manifest only says how many parts there
    # are.
    try:
        parts = max(1, len(json.loads(manifest)["replicas"]))
    except (ValueError, KeyError, TypeError):
        parts = 1

    def write(request: str) -> list[str]:
        return [
            # One part at a time is restored, so that a large table needs little memory.
            restore(source, part, parts, keep_watermarks=False).export(request)
            for part in range(parts)
        ]

    num_rows = write_tables(directory, write, threshold, since_version)
    Terminal().print(f"{num_rows:,} rows are in {directory}", highlight=False)
