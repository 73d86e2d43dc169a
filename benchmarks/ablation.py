"""What each optimisation of elasticdl is worth: switched off in turn, the same job.

    python benchmarks/ablation.py [--runs=5] [--switch=NAME ...] [--short]

The job is the Criteo-shaped DeepFM (minibatches of 512, SGD), with two ps replicas and four workers
(`2 + 4`) and with one of each (`1 + 1`), from records on disk. No option of elasticdl exists for
this. Most switches are functions of `ablated/criteo_ablated.py`, which each worker imports as its
model file: they put in the place of an optimisation what would be there without it. Of the others,

- Unix sockets are refused to all processes of the job by a library that is loaded before others
  (`LD_PRELOAD`); TCP is left;
- huge pages are refused by the kernel (`prctl(PR_SET_THP_DISABLE)`);
- one thread a worker becomes two by `--worker_threads=2`.

What cannot be switched off is left out: without merging of gradients at all, and with embeddings
looked up inside the step, there is no job to run. What the latter is worth is measured on the step
alone, in plain TensorFlow with one thread: rows given to it, against rows gathered in it.

Figures are records/s in the steady state. A ratio above 1 says how many times faster the job is
with the optimisation than without it. The fastest run of each counts, medians are beside them.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from jobs import ROOT, JobRun, print_stages, run_job
from report import Side, compare, interleave, write_results
from workloads import CRITEO, prepare, run_peer

ZOO = ROOT / "benchmarks" / "ablated"
MINIBATCH_SIZE = 512
PR_SET_THP_DISABLE = 41

# Unix sockets of the abstract kind, which have no file, are all that elasticdl binds.
NO_UNIX_SOCKETS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
int bind(int fd, const struct sockaddr *address, socklen_t length) {
    if (address->sa_family == AF_UNIX && !((const struct sockaddr_un *)address)->sun_path[0]) {
        errno = EPERM;
        return -1;
    }
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
    return next(fd, address, length);
}
"""


@dataclass(frozen=True, slots=True)
class Switch:
    """Something that is switched off.

    functions: of `ablated/criteo_ablated.py`. others: what is done to the processes of the job.
    """

    said: str
    functions: tuple[str, ...] = ()
    has_unix_sockets: bool = True
    has_huge_pages: bool = True
    threads: int = 1

    def options(self) -> tuple[str, ...]:
        """Return the options of the job."""
        return (f"--worker_threads={self.threads}",)


@dataclass(slots=True)
class Shape:
    """How many processes a job has, and what was seen of its best runs."""

    num_ps: int
    num_workers: int
    stages: dict[str, JobRun] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As it stands in the results."""
        return f"{self.num_ps} + {self.num_workers}"


ALL_ON = "all on"
SWITCHES = {
    "vectorised_feed": Switch("feed vectorised (record by record)", ("vectorised_feed",)),
    "own_feed": Switch("feed run by elasticdl (by tf.data)", ("own_feed",)),
    "parsing_together": Switch("minibatches parsed together (each alone)", ("parsing_together",)),
    "parsing_in_rust": Switch("records parsed by Rust (by TensorFlow)", ("parsing_in_rust",)),
    "pulling_ahead": Switch("steps pulled ahead (after the last push)", ("pulling_ahead",)),
    "overlap": Switch("stages side by side (one at a time)", ("overlap", "pulling_ahead")),
    "merging_in_rust": Switch("ids and gradients merged in Rust (NumPy)", ("merging_in_rust",)),
    "shared_ids": Switch("tables share merged ids (each its own)", ("shared_ids",)),
    "flat_calls": Switch("flat calls without copies (TensorFlow's own)", ("flat_calls",)),
    "priorities": Switch("computing goes first (equal priorities)", ("priorities",)),
    "unix_sockets": Switch("Unix sockets (TCP)", has_unix_sockets=False),
    "huge_pages": Switch("huge pages (4 KiB)", has_huge_pages=False),
    "one_thread": Switch("one thread computes (two)", threads=2),
    "everything": Switch(
        "all of these (none)",
        ("own_feed", "overlap", "pulling_ahead", "merging_in_rust", "flat_calls", "priorities"),
        has_unix_sockets=False,
        has_huge_pages=False,
        threads=2,
    ),
}


def main() -> None:
    """Run the jobs and write `results/ablation.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--switch", action="append", choices=SWITCHES, help="default: all")
    parser.add_argument("--short", action="store_true", help="1 + 1 once, not kept")
    args = parser.parse_args()
    prepare(CRITEO)
    names = args.switch or list(SWITCHES)
    shapes = [Shape(1, 1)] if args.short else [Shape(2, 4), Shape(1, 1)]
    with tempfile.TemporaryDirectory(prefix="ablation-") as folder:
        library = compile_library(Path(folder))
        sides: dict[str, Callable[[], float]] = {}
        for shape in shapes:
            sides[f"{shape.name}, {ALL_ON}"] = partial(run, shape, ALL_ON, Switch(ALL_ON), library)
            for name in names:
                switch = SWITCHES[name]
                sides[f"{shape.name}, {name}"] = partial(run, shape, name, switch, library)
        options = ("--optimizer=none", "--threads=1")
        for rows in ("given", "gathered"):
            script = "criteo_tf_function.py"
            sides[rows] = partial(run_peer, script, MINIBATCH_SIZE, *options, f"--rows={rows}")
        measured = interleave(sides, 1 if args.short else args.runs)
    report(measured, shapes, names, keep=not args.short)


def report(measured: Mapping[str, Side], shapes: list[Shape], names: list[str], keep: bool) -> None:
    """Write what was measured, and say where the time went."""
    rows = [
        compare(
            f"{shape.name}: {SWITCHES[name].said}",
            "records/s",
            measured[f"{shape.name}, {ALL_ON}"],
            measured[f"{shape.name}, {name}"],
        )
        for shape in shapes
        for name in names
    ]
    rows.append(
        compare(
            "a step alone: rows are given to it (gathered in it)",
            "records/s",
            measured["given"],
            measured["gathered"],
        )
    )
    stages = {
        f"{shape.name}, {name}": run.stages
        for shape in shapes
        for name, run in shape.stages.items()
    }
    write_results("ablation", rows, {"microseconds a record": stages}, keep)
    print_stages(stages)


def run(shape: Shape, name: str, switch: Switch, library: Path) -> float:
    """Run a job with something switched off; return its records/s."""
    environment = {"SWITCHED_OFF": ",".join(switch.functions)}
    if not switch.has_unix_sockets:
        environment["LD_PRELOAD"] = str(library)
    found = run_job(
        "--model_def=criteo_ablated.forward",
        f"--training_data={CRITEO.folder}",
        "--distribution_strategy=ParameterServerStrategy",
        f"--num_ps_pods={shape.num_ps}",
        f"--num_workers={shape.num_workers}",
        f"--minibatch_size={MINIBATCH_SIZE}",
        "--optimizer=sgd",
        *switch.options(),
        model_zoo=ZOO,
        variables=environment,
        before=None if switch.has_huge_pages else refuse_huge_pages,
    )
    best = shape.stages.get(name)
    if best is None or best.records_per_second < found.records_per_second:
        shape.stages[name] = found
    return found.records_per_second


def refuse_huge_pages() -> None:
    """Have the kernel give no huge pages to this process and those that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_THP_DISABLE)")


def compile_library(folder: Path) -> Path:
    """Compile what refuses Unix sockets; the C compiler is one that building elasticdl needs."""
    source, library = folder / "no_unix_sockets.c", folder / "no_unix_sockets.so"
    source.write_text(NO_UNIX_SOCKETS)
    command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


if __name__ == "__main__":
    main()
