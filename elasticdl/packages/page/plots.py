"""Draws loss and throughput of a job for the user's own report: SVG or PNG, by Matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from elasticdl.distribution import install
from elasticdl.errors import ConfigError

Format = Literal["svg", "png"]

_INCHES = (7.0, 3.2)
_DOTS_PER_INCH = 150


def write_plots(board: Mapping[str, Any], folder: Path, formats: Sequence[Format]) -> list[Path]:
    """Write loss and throughput over time; return the files.

    Args:
        board: A whole history, as `history.board.board` returns it.
        folder: Gets the files.
        formats: The formats of each picture.

    Raises:
        ConfigError: Matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"--svg and --png need Matplotlib: {install('plots')}") from error
    written = []
    series, step = board["series"], board["grid"]["step"]
    for name, label in (("throughput", "records/s"), ("loss", "loss")):
        values = series[name]
        minutes = [(series["from"] + at + 0.5) * step / 60 for at in range(len(values))]
        # Text stays text in SVG, and the same job always gives the same file.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "elasticdl"}):
            figure = Figure(figsize=_INCHES, layout="constrained")
            axes = figure.subplots()
            axes.plot(minutes, [float("nan") if value is None else value for value in values])
            axes.set_xlabel("minutes")
            axes.set_ylabel(label)
            axes.grid(alpha=0.3)
            if name == "throughput":
                axes.set_ylim(bottom=0.0)
                for dip in board["dips"]:
                    began = board["grid"]["began"]
                    axes.axvspan(
                        (dip["begin"] - began) / 60, (dip["end"] - began) / 60, alpha=0.2, lw=0
                    )
            for format in formats:
                path = folder / f"{name}.{format}"
                # A date would make each file different.
                metadata = {"Date": None} if format == "svg" else None
                figure.savefig(path, dpi=_DOTS_PER_INCH, metadata=metadata)
                written.append(path)
    return written
