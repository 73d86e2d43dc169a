"""Shows a job in a notebook by a picture that follows the job."""

from __future__ import annotations

import builtins
import html
import time
from collections.abc import Callable

from elasticdl.cli.display import is_warning
from elasticdl.job.status import JobStatus

_SECONDS = 1.0


def is_there() -> bool:
    """Return whether this code runs in a cell of a notebook."""
    shell = getattr(builtins, "get_ipython", None)
    return shell is not None and type(shell()).__name__ == "ZMQInteractiveShell"


def picture(status: JobStatus) -> str:
    """Return a picture of a job as HTML."""
    rows = [
        ("records", f"{status.records_done:,} of {status.records_total:,}"),
        ("records/s", f"{status.records_per_second:,.0f}"),
        ("workers", str(status.num_workers_alive)),
        ("ps replicas", str(status.num_ps_alive)),
        *((name, f"{value:.5g}") for name, value in sorted(status.metrics.items())),
    ]
    if status.loss is not None:
        rows.insert(2, ("loss", f"{status.loss:.5g}"))
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:right'>{html.escape(value)}</td></tr>"
        for name, value in rows
    )
    share = status.records_done / status.records_total if status.records_total else 0.0
    head = f"<b>{html.escape(status.job_name)}</b> {html.escape(status.status)}"
    said = [line for line in status.data_check if is_warning(line)]
    said += [status.message] if status.message else []
    words = "".join(f"<div>{html.escape(line)}</div>" for line in said)
    bar = f"<progress value='{share:.4f}' max='1' style='width:20em'></progress>"
    return f"<div>{head}<br>{bar}<table>{cells}</table>{words}</div>"


def follow(status: Callable[[], JobStatus], has_ended: Callable[[], bool]) -> None:
    """Show a job below the cell until the job ends."""
    from IPython.display import HTML, display  # a notebook has it

    handle = display(HTML(picture(status())), display_id=True)
    while not has_ended():
        time.sleep(_SECONDS)
        handle.update(HTML(picture(status())))
    handle.update(HTML(picture(status())))
