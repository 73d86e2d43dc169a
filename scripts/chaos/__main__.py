"""Breaks a real job at random moments and proves that what it trained is exact.

The job trains `model_zoo/counting`. Exit code 0 means that every fault happened, every count, sum
and average is right, and the job's own ledger agrees. If --ps_recovery=latest is given, the missing
work must be exactly the work that the job reports as lost.

    python -m scripts.chaos --seed 7                          # all kinds of faults
    python -m scripts.chaos --seed 7 --faults worker          # a worker killed with -9
    python -m scripts.chaos --faults ps@exporting,ps+master   # in a phase; two at once
    python -m scripts.chaos --seed 7 --mode synchronous       # gradients of 3 workers averaged
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from .faults import PHASES, ROLES, SPECIAL, parse
from .job import MODES
from .run import run
from .soak import soak

assert __doc__


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        prog="chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--faults",
        default="worker,worker,ps,master,add,worker+ps,ps@evaluating,worker@exporting",
        help=f"comma list of {', '.join([*ROLES, *SPECIAL])}; roles joined by + are killed at "
        f"once; @ and a phase ({', '.join(PHASES)}) says when, otherwise at a random moment",
    )
    parser.add_argument("--mode", choices=MODES, default="async", help="when updates are made")
    parser.add_argument("--ps_recovery", choices=("replay", "latest"), default="replay")
    parser.add_argument("--state", help="the job's --state")
    parser.add_argument("--tls", choices=("job", "off"), help="what the processes speak")
    parser.add_argument("--minutes", type=float, default=0, help="run random jobs for so long")
    parser.add_argument("--record", type=Path, help="with --minutes: what was done, as JSON")
    parser.add_argument("--dir", type=Path, help="keep the job's files here")
    arguments = parser.parse_args()
    kinds = [kind for kind in arguments.faults.split(",") if kind]
    try:
        for kind in kinds:
            parse(kind, random.Random())
    except ValueError as error:
        parser.error(f"--faults: {error}")
    console = Console()
    with tempfile.TemporaryDirectory(prefix="elasticdl-chaos-") as scratch:
        directory = arguments.dir or Path(scratch)
        if arguments.minutes:
            sys.exit(soak(arguments.seed, arguments.minutes, directory, arguments.record, console))
        directory.mkdir(parents=True, exist_ok=True)
        record = run(
            arguments.seed,
            kinds,
            directory,
            console,
            arguments.mode,
            arguments.ps_recovery,
            arguments.state,
            arguments.tls,
        )
    console.print("[red]NOT exact" if record.problems else "[green]every count is exact")
    sys.exit(1 if record.problems else 0)


if __name__ == "__main__":
    main()
