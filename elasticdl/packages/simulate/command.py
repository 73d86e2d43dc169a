"""`elasticdl simulate`: what a job would do on a cluster, from costs measured on this machine."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
from click import get_current_context
from click.core import ParameterSource
from rich.box import SIMPLE_HEAD
from rich.progress import Progress
from rich.table import Table

from elasticdl.cli.terminal import LocalPath, Terminal, echo
from elasticdl.errors import ConfigError

if TYPE_CHECKING:  # what --help need not wait for
    from elasticdl.packages.simulate.cluster import Cluster
    from elasticdl.packages.simulate.costs import Costs
    from elasticdl.packages.simulate.forecast import Forecast
    from elasticdl.packages.simulate.losses import Hazards

_STORED = "costs"  # the folder of costs, in the current one
_PRESETS = ("sparse-lr", "xdl", "nestpipe")
_OF_PRESETS = (
    *("preset", "num_minibatches_per_task", "hours"),
    *("spot_rate", "ps_loss_rate", "restart_seconds", "recovery_seconds"),
)
"""The options that have an effect on the jobs of a preset."""
_CURVE = (0.1, 0.25, 0.5, 0.75)


def _number(flag: str, default: float | None, least: float, words: str) -> click.RichOption:
    return click.RichOption(
        [flag], type=click.FloatRange(min=least), default=default, show_default=True, help=words
    )


_OPTIONS = [
    click.RichOption(["--workers"], type=click.IntRange(min=1), help="Number of workers."),
    click.RichOption(["--ps"], type=click.IntRange(min=1), help="Number of ps replicas."),
    click.RichOption(
        ["--model"],
        help="The model whose costs are used: its function, as in --model_def of elasticdl train. "
        "[default: the flights of make demo]",
    ),
    click.RichOption(
        ["--calibrate"],
        is_flag=True,
        help="First measure the costs by two short jobs on this machine, in about a minute. Write "
        "flags of elasticdl train, such as --training_data, after --.",
    ),
    click.RichOption(
        ["--costs"],
        type=LocalPath(path_type=Path, dir_okay=False),
        help=f"File with the costs; --calibrate writes it. [default: {_STORED}/MODEL.json]",
    ),
    click.RichOption(
        ["--preset"],
        type=click.Choice(_PRESETS),
        help="Simulate published jobs, and show the published figures beside the simulated ones.",
    ),
    click.RichOption(
        ["--num_minibatches_per_task"],
        type=click.IntRange(min=1),
        help="Minibatches in a task. [default: as measured]",
    ),
    click.RichOption(
        ["--minibatch_size"],
        type=click.IntRange(min=1),
        help="Records in a minibatch; the costs of a record stay the same. [default: as measured]",
    ),
    click.RichOption(
        ["--exchange_minibatches"],
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Minibatches in one exchange with the ps replicas.",
    ),
    _number("--worker_cores", 4, 0.1, "Cores of the machine of each worker."),
    _number("--ps_cores", 4, 0.1, "Cores of the machine of each ps replica."),
    _number("--shared_cores", None, 0.1, "All processes share one machine with these cores."),
    _number("--processor_speed", 1, 0.01, "Speed of a worker's core, relative to this machine's."),
    _number("--network", 10, 0.001, "Gbit/s of each machine."),
    _number("--latency", 0.1, 0, "Milliseconds from one machine to another."),
    _number("--input_bandwidth", None, 0.001, "GB/s of the storage, for all workers together."),
    click.RichOption(
        ["--stragglers"],
        metavar="SHARE:FACTOR",
        help="0.1:1.5: a tenth of the workers takes 1.5 times as long.",
    ),
    _number("--spot_rate", 0.05, 0, "How often a worker is lost, per hour."),
    _number("--ps_loss_rate", 0.001, 0, "How often a ps replica is lost, per hour."),
    _number("--restart_seconds", 30, 0, "Seconds until the successor of a lost process works."),
    _number("--recovery_seconds", 60, 0, "As in elasticdl train; 0 for a job with --ps_redo_mb."),
    _number("--hours", 24, 0.01, "Hours to simulate for the goodput."),
    click.RichOption(
        ["--figure"], type=LocalPath(path_type=Path, dir_okay=False), help="Draw this SVG file."
    ),
    click.RichOption(["--json", "as_json"], is_flag=True, help="Print the results as JSON."),
    click.Argument(["flags"], nargs=-1, metavar="[-- FLAGS]"),
]


def _simulate(**words: object) -> None:
    """Predict how fast a job would be on a cluster, and what bounds it.

    The command needs no cluster: it simulates each minibatch with costs that were measured on this
    machine. It prints records/s, the efficiency relative to one worker alone, the goodput of a day
    in which processes are lost, and the bottleneck.
    """
    given = _Given(words)
    if given.preset:
        _refuse_beside_a_preset(words)
        _show_preset(given)
        return
    if given.whole("workers") is None or given.whole("ps") is None:
        raise ConfigError(
            "expected --workers and --ps, for example --workers=160 --ps=32, or --preset"
        )
    costs = given.costs()
    from elasticdl.packages.simulate.forecast import forecast

    found = forecast(costs, given.cluster(), given.hazards(), given.number("hours") * 3600)
    if words["as_json"]:
        echo(json.dumps(_as_json(costs, found), indent=2))
    else:
        _print(costs, found)
    if isinstance(path := words["figure"], Path):
        _write_figure(path, costs, found)


simulate = click.RichCommand(
    name="simulate", callback=_simulate, params=_OPTIONS, help=_simulate.__doc__
)


def _refuse_beside_a_preset(words: Mapping[str, object]) -> None:
    """Refuse flags that would have no effect, since a preset has its own jobs and costs.

    Raises:
        ConfigError: There is such a flag; names all of them.
    """
    source = get_current_context().get_parameter_source
    given = [name for name in words if source(name) is ParameterSource.COMMANDLINE]
    if idle := [name for name in given if name not in _OF_PRESETS]:
        flags = ", ".join("--json" if name == "as_json" else f"--{name}" for name in idle)
        raise ConfigError(
            f"--preset has clusters and costs of its own, and prints a table: {flags} would have "
            "no effect; leave out the one or the others"
        )


class _Given:
    """Turns the words of the command line into inputs of the simulator."""

    def __init__(self, words: Mapping[str, object]) -> None:
        self._words = words
        self.preset = words["preset"]

    def number(self, name: str) -> float:
        value = self._words[name]
        assert isinstance(value, int | float), "it has a default"
        return float(value)

    def whole(self, name: str) -> int | None:
        value = self._words[name]
        return value if isinstance(value, int) else None

    def cluster(self) -> Cluster:
        """Return the cluster of the flags."""
        from elasticdl.packages.simulate.cluster import GIGABIT, Cluster

        shared, storage = self._words["shared_cores"], self._words["input_bandwidth"]
        share, factor = self._stragglers()
        cluster = Cluster(
            workers=self.whole("workers") or 1,
            ps=self.whole("ps") or 1,
            worker_cores=self.number("worker_cores"),
            ps_cores=self.number("ps_cores"),
            shared_cores=float(shared) if isinstance(shared, float) else None,
            processor_speed=self.number("processor_speed"),
            worker_network=self.number("network") * GIGABIT,
            ps_network=self.number("network") * GIGABIT,
            latency=self.number("latency") / 1e3,
            straggler_share=share,
            straggler_factor=factor,
        )
        if isinstance(storage, float):
            cluster = replace(cluster, input_bandwidth=storage * 1e9)
        return cluster

    def _stragglers(self) -> tuple[float, float]:
        word = self._words["stragglers"]
        if word is None:
            return 0.0, 1.0
        share, _, factor = str(word).partition(":")
        try:
            return float(share), float(factor)
        except ValueError:
            raise ConfigError(
                f"--stragglers: expected SHARE:FACTOR such as 0.1:1.5, found {word!r}"
            ) from None

    def hazards(self) -> Hazards:
        """Return the rates and costs of losses."""
        from elasticdl.packages.simulate.losses import Hazards

        return Hazards(
            worker_rate=self.number("spot_rate"),
            ps_rate=self.number("ps_loss_rate"),
            restart=self.number("restart_seconds"),
            recovery_seconds=self.number("recovery_seconds"),
        )

    def costs(self) -> Costs:
        """Return the costs of the model: measured now, or read, or those of the flights."""
        from elasticdl.packages.simulate.costs import read_costs
        from elasticdl.packages.simulate.published import FLIGHTS

        model = self._words["model"]
        given = self._words["costs"]
        path = given if isinstance(given, Path) else Path(_STORED, f"{model}.json")
        flags = self._words["flags"]
        assert isinstance(flags, tuple)
        if self._words["calibrate"]:
            if model is None:
                raise ConfigError("--calibrate: expected --model, the function of a model file")
            from elasticdl.packages.simulate.calibrate import calibrate

            costs = calibrate(str(model), [str(flag) for flag in flags])
            costs.write(path)
            echo(f"{path}: costs of {model}", err=True)
        elif flags:
            raise ConfigError(f"expected --calibrate for flags of a job, found {flags[0]!r}")
        elif path.exists() or given is not None:
            costs = read_costs(path)
        elif model in (None, FLIGHTS.model):
            costs = FLIGHTS
        else:
            raise ConfigError(
                f"--model={model}: expected its costs in {path}, found no such file; measure them "
                "once: elasticdl simulate --calibrate"
            )
        if (per_task := self.whole("num_minibatches_per_task")) is not None:
            costs = replace(costs, minibatches_per_task=per_task)
        if (size := self.whole("minibatch_size")) is not None:
            costs = costs.of_minibatches(size)
        return replace(costs, exchange_minibatches=self.whole("exchange_minibatches") or 1)


def _show_preset(given: _Given) -> None:
    from elasticdl.packages.simulate.published import PRESETS

    preset = PRESETS[str(given.preset)]
    costs = preset.costs
    if (per_task := given.whole("num_minibatches_per_task")) is not None:
        costs = replace(costs, minibatches_per_task=per_task)
    # It is to fit a terminal of 80 characters.
    table = Table(title=preset.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    has_figures = any(job.published for job in preset.jobs)
    sizes = ("minibatch", "a frame", "simulated")
    beside = ("published", "simulated", "") if has_figures else sizes
    for head in ("workers x ps", *beside, "efficiency", "bound by"):
        table.add_column(head, justify="left" if head == "bound by" else "right", no_wrap=True)
    clusters = [replace(preset.cluster, workers=job.workers, ps=job.ps) for job in preset.jobs]
    of_jobs = [
        replace(
            costs if job.minibatch_size is None else costs.of_minibatches(job.minibatch_size),
            exchange_minibatches=job.exchange_minibatches,
        )
        for job in preset.jobs
    ]
    for job, of_job, found in zip(
        preset.jobs, of_jobs, _forecasts(of_jobs, clusters, given), strict=True
    ):
        speed, published = f"{found.records_per_second:,.0f}", job.published
        figures = (f"{of_job.minibatch_size:,.0f}", f"{job.exchange_minibatches}", speed)
        if has_figures and published is None:
            figures = ("", speed, "")
        elif published is not None:
            error = f"{found.records_per_second / published - 1:+.0%}"
            figures = (f"{published:,.0f}", speed, error)
        table.add_row(
            f"{job.workers:,} x {job.ps:,}",
            *figures,
            f"{found.efficiency:.1%}",
            found.bottleneck.value,
        )
    Terminal().print(table)
    echo(f"Examples/s. {preset.source}. Costs: {costs.model}.")
    for job in preset.jobs:
        if job.said:
            echo(f"{job.workers:,} x {job.ps:,}: {job.said}")


def _forecasts(costs: list[Costs], clusters: list[Cluster], given: _Given) -> list[Forecast]:
    """Forecast jobs, as many at a time as there are cores."""
    from elasticdl.packages.simulate.forecast import forecast

    # A fork could hang if this process had threads.
    cores = ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))
    hazards, seconds = repeat(given.hazards()), repeat(given.number("hours") * 3600)
    with cores, Progress(console=Terminal(stderr=True), transient=True) as progress:
        found = cores.map(forecast, costs, clusters, hazards, seconds)
        return list(progress.track(found, total=len(costs), description="jobs"))


def _print(costs: Costs, found: Forecast) -> None:
    from elasticdl.packages.simulate.forecast import ADVICE

    cluster, balance = found.cluster, found.balance
    echo(
        f"{costs.model}, minibatches of {costs.minibatch_size:,.0f}: {cluster.workers:,} workers "
        f"and {cluster.ps:,} ps replicas:"
    )
    table = Table(show_header=False)
    table.add_row("speed", f"{found.records_per_second:,.0f} records/s")
    table.add_row("one worker alone", f"{found.alone:,.0f} records/s")
    table.add_row("efficiency", f"{found.efficiency:.1%}")
    lost = {
        "workers away": balance.away,
        "ps replicas away": balance.stalled,
        "trained again": balance.repeated,
        "checkpoints": balance.checkpoints,
    }
    why = ", ".join(f"{what} {part / balance.possible:.2%}" for what, part in lost.items() if part)
    losses = f"{balance.num_worker_losses:,} workers and {balance.num_ps_losses:,} ps replicas"
    table.add_row("goodput", f"{balance.goodput:.1%} (lost {losses}; {why})")
    table.add_row("bottleneck", f"{found.bottleneck.value}: {ADVICE[found.bottleneck]}")
    gains = sorted(found.gains.items(), key=lambda item: -item[1])
    table.add_row(
        "if twice as fast", ", ".join(f"{what.value} {gain - 1:+.0%}" for what, gain in gains)
    )
    Terminal().print(table)


def _as_json(costs: Costs, found: Forecast) -> dict[str, object]:
    return {
        "model": costs.model,
        "workers": found.cluster.workers,
        "ps": found.cluster.ps,
        "records_per_second": found.records_per_second,
        "records_per_second_of_one_worker": found.alone,
        "efficiency": found.efficiency,
        "goodput": found.balance.goodput,
        "bottleneck": found.bottleneck.value,
        "gains_if_twice_as_fast": {what.value: gain - 1 for what, gain in found.gains.items()},
    }


def _write_figure(path: Path, costs: Costs, found: Forecast) -> None:
    from elasticdl.packages.simulate.pace import records_per_second
    from elasticdl.packages.simulate.picture import picture

    numbers = sorted({max(1, round(share * found.cluster.workers)) for share in _CURVE})
    points = [
        (workers, records_per_second(costs, replace(found.cluster, workers=workers)))
        for workers in numbers
        if workers < found.cluster.workers
    ]
    points.append((found.cluster.workers, found.records_per_second))
    try:
        path.write_text(picture(found, points), "utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
    echo(str(path), err=True)
