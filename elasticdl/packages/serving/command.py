"""Implements `elasticdl serve`, and `elasticdl exports`, which lists and chooses versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from elasticdl.cli.terminal import Terminal, echo
from elasticdl.distribution import install
from elasticdl.errors import ConfigError

if TYPE_CHECKING:
    from elasticdl.locations import Location


@click.command(name="serve")
@click.argument("export")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8501,
    show_default=True,
    help="Port to listen at; 0: any free one.",
)
@click.option(
    "--poll_seconds",
    type=click.FloatRange(0.01, 3600),
    default=0.1,
    show_default=True,
    help="Seconds between two looks for a newer version.",
)
@click.option(
    "--max_request_bytes",
    type=click.IntRange(1),
    default=16 << 20,
    show_default=True,
    help="Largest size of a request after unpacking. A larger request is refused.",
)
@click.option(
    "--max_connections",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Most connections at a time. At the limit, a new connection replaces an idle or slow one; "
    "if there is none, it is refused.",
)
@click.option(
    "--max_records",
    type=click.IntRange(1),
    default=1 << 17,
    show_default=True,
    help="Most records in a request. A request with more is refused.",
)
@click.option(
    "--max_bytes_in_flight",
    type=click.IntRange(1),
    default=256 << 20,
    show_default=True,
    help="Most bytes of all requests and answers together. At the limit, slow requests are ended, "
    "or new requests are refused (503).",
)
@click.option(
    "--rows_dir",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Keep rows in files of this folder, mapped into memory, so that tables may be larger than "
    "memory. The files are removed when the server ends.",
)
def serve(
    export: str,
    host: str,
    port: int,
    poll_seconds: float,
    max_request_bytes: int,
    max_connections: int,
    max_records: int,
    max_bytes_in_flight: int,
    rows_dir: Path | None,
) -> None:
    """Serve the newest version of an exported model over HTTP.

    EXPORT is the folder or URL that a training job names by --export_dir. POST /v1/predict takes
    JSON or Arrow. The server changes to each newer version. If a version is missing or damaged, it
    goes on with the last good one.
    """
    import tempfile

    from elasticdl.runtime.addresses import join
    from elasticdl.runtime.start_up import quiet_tensorflow

    if not host:  # a variable without a value; asyncio would listen at all addresses
        raise click.UsageError("--host=: expected an address; 0.0.0.0 and :: are all of IPv4, IPv6")
    directory = _directory(export)
    # TensorFlow prints when it is imported, so this comes first.
    quiet_tensorflow()
    try:
        from elasticdl.packages.serving.server import RequestLimits, Server
        from elasticdl.packages.serving.server import serve as run
    except ImportError as error:
        if error.name not in ("aiohttp", "prometheus_client"):
            raise
        raise ConfigError(f"elasticdl serve needs {error.name}; {install('dashboard')}") from error
    from elasticdl.packages.serving.versions import Versions

    with tempfile.TemporaryDirectory(prefix="elasticdl-serve-") as scratch:
        versions = Versions(directory, Path(scratch), rows_dir)
        limits = RequestLimits(max_request_bytes, max_connections, max_records, max_bytes_in_flight)
        server = Server(versions, limits, poll_seconds, lambda text: echo(text))
        run(server, host, port, lambda: echo(f"listens at http://{join(host, server.port)}"))


def _directory(export: str) -> Location:
    """Return the place of the versions.

    Raises:
        ConfigError: No job writes versions there.
    """
    from elasticdl.backends.exported import is_export
    from elasticdl.locations import is_remote, parse

    directory = parse(export)
    # A job may still make the folder, but it writes no versions into these.
    if not is_remote(directory) and (directory.is_file() or is_export(directory)):
        what = "a file" if directory.is_file() else "a model of --output"
        raise ConfigError(
            f"EXPORT={export}: expected the folder of --export_dir of a training job, found "
            f"{what}; a model of --output is for elasticdl predict and TensorFlow Serving"
        )
    return directory


@click.command(name="exports")
@click.argument("export")
@click.option(
    "--use",
    metavar="VERSION",
    help="Serve this version from now on (hold it). newest: serve the newest version, and each "
    "newer one.",
)
def exports(export: str, use: str | None) -> None:
    """List the versions of an export, or choose the version to serve.

    While a version is held, a running job still writes new versions.
    """
    from elasticdl.errors import ExportError
    from elasticdl.locations import reaching
    from elasticdl.packages.serving.publishing import point_to, read_current, versions

    directory = _directory(export)
    # The word is checked before anything is changed.
    if use is not None and use != "newest" and not use.isdecimal():
        raise click.UsageError(f"--use={use}: expected the number of a version, or newest")
    if use is not None:
        point_to(directory, None if use == "newest" else int(use))
    with reaching(directory):
        current, found = read_current(directory), versions(directory)
    if not found:
        raise ExportError(f"{directory}: expected an export with versions, found none")
    terminal = Terminal()
    for manifest in found:
        mark = ""
        if current is not None and current.version.number == manifest.number:
            mark = "  <- held" if current.is_held else "  <- served"
        kind = "base " if manifest.is_base else "delta"
        terminal.print(
            f"version {manifest.number:>6}  {kind}  model version {manifest.model_version:,}{mark}",
            highlight=False,
        )
