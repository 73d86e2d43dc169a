"""All-reduce among ranks of one machine, against gloo (`torch.distributed`), in one run.

Each rank is a process that has all three: a ring over TCP, a ring through shared memory, and a
group of gloo. They take turns. A figure is the bytes of the vector divided by the time of one
all-reduce on the slowest rank. Ours weighs by samples, divides, and writes the mean to another
array than the gradients. gloo adds up in place.

The memory bound is measured with threads of one process, one for each rank. Each thread adds up its
part of all arrays and copies the sums. No process waits, and nothing is checked.

    make bench ONLY=allreduce
    python benchmarks/allreduce.py [--short]     # with PyTorch where Python finds it
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from numpy.typing import NDArray
from report import Row, asked_for_short, compare, interleave, write_results

TOKEN = b"a token of this benchmark"
SIDES = ("tcp", "shared memory", "gloo")
BOUND = "memory bound"
MB = 1_000_000
TARGETS = {"tcp": 1.0, "shared memory": 3.0}


@dataclass(frozen=True, slots=True)
class Size:
    """A vector: how it is called, its bytes, and how often it is reduced in a run."""

    name: str
    num_bytes: int
    times: int


SIZES = (
    Size("4 KB", 4_000, 500),
    Size("1 MB", MB, 40),
    Size("16 MB", 16 * MB, 6),
    Size("100 MB", 100 * MB, 2),
)


def main() -> None:
    """Measure and write `benchmarks/results/allreduce.json`."""
    short = asked_for_short(__doc__)
    runs = 2 if short else 15
    load_before = os.getloadavg()
    rows: list[Row] = []
    versions: set[str] = set()
    for num_ranks in (2, 4):
        with ranks_of(num_ranks) as ranks:
            versions |= {rank.torch for rank in ranks}
            for size in SIZES:
                print(f"{num_ranks} ranks, {size.name}", file=sys.stderr)
                rows += measure(ranks, size, runs)
    notes = {
        "torch": ", ".join(sorted(versions)),
        "runs": runs,
        "targets against gloo, from 1 MB on": TARGETS,
        "load_average_before": [round(load, 2) for load in load_before],
        "unit": "GB/s: bytes of the vector by the time of one all-reduce",
        "cores_to_run_on": len(os.sched_getaffinity(0)),
    }
    write_results("allreduce", rows, notes, keep=not short)


def measure(ranks: list[Rank], size: Size, runs: int) -> list[Row]:
    """Have all sides take turns at one size; return the lines of the report."""

    def run_of(side: str) -> Callable[[], float]:
        return lambda: size.num_bytes / 1e9 / reduce_once(ranks, side, size)

    sides: dict[str, Callable[[], float]] = {side: run_of(side) for side in SIDES}
    sides[BOUND] = lambda: size.num_bytes / 1e9 / bound_seconds(len(ranks), size)
    found = interleave(sides, runs)
    label = f"{len(ranks)} ranks, {size.name}"
    return [
        compare(f"{label}: TCP (gloo)", "GB/s", found["tcp"], found["gloo"]),
        compare(f"{label}: shared memory (gloo)", "GB/s", found["shared memory"], found["gloo"]),
        compare(f"{label}: TCP (memory bound)", "GB/s", found["tcp"], found[BOUND]),
        compare(
            f"{label}: shared memory (memory bound)", "GB/s", found["shared memory"], found[BOUND]
        ),
    ]


def reduce_once(ranks: list[Rank], side: str, size: Size) -> float:
    """Return the seconds of one all-reduce, of the slowest rank."""
    for rank in ranks:
        rank.ask(side=side, num_bytes=size.num_bytes, times=size.times)
    return max(rank.answer()["seconds"] for rank in ranks)


def bound_seconds(num_threads: int, size: Size) -> float:
    """Return the seconds in which threads add up each other's arrays and copy the sums."""
    count = size.num_bytes // 4
    given = [np.ones(count, np.float32) for _ in range(num_threads)]
    sums = [np.zeros(count, np.float32) for _ in range(num_threads)]
    edges = [count * part // num_threads for part in range(num_threads + 1)]
    parts = [slice(*edges[part : part + 2]) for part in range(num_threads)]

    def add_up(own: int) -> None:
        part = parts[own]
        np.add(given[0][part], given[1][part], out=sums[own][part])
        for other in given[2:]:
            np.add(sums[own][part], other[part], out=sums[own][part])

    def copy(own: int) -> None:
        for other, part in enumerate(parts):
            if other != own:
                np.copyto(sums[own][part], sums[other][part])

    with ThreadPoolExecutor(num_threads) as threads:
        # Once before, so that all memory is there.
        list(threads.map(add_up, range(num_threads)))
        list(threads.map(copy, range(num_threads)))
        began = time.perf_counter()
        for _ in range(size.times):
            list(threads.map(add_up, range(num_threads)))
            list(threads.map(copy, range(num_threads)))
        return (time.perf_counter() - began) / size.times


# --- ranks ----------------------------------------------------------------------------------------


class Rank:
    """A process that takes part in all rings, as the driver sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.torch = ""

    def ask(self, **words: object) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for a line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a rank ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def ranks_of(size: int) -> Iterator[list[Rank]]:
    """Start processes and have them form their rings."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ranks = []
        for rank in range(size):
            process = subprocess.Popen(
                [sys.executable, __file__, "--rank", str(rank), str(size), folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append(Rank(process))
        members = [rank.answer()["addresses"] for rank in ranks]
        for rank in ranks:
            rank.ask(members=members)
        for rank in ranks:
            rank.torch = rank.answer()["torch"]
        yield ranks


def run_rank(rank: int, size: int, folder: str) -> None:
    """Take part until stdin ends."""
    import torch
    import torch.distributed as dist

    from elasticdl._core import Ring, RingListener

    ours = SIDES[:2]
    listeners = [RingListener("127.0.0.1", 0, TOKEN) for _ in ours]
    say(addresses=[listener.address for listener in listeners])
    members = json.loads(sys.stdin.readline())["members"]
    rings = {}
    for number, side in enumerate(ours):
        rings[side] = Ring.form(
            listeners[number],
            1,
            rank,
            [addresses[number] for addresses in members],
            timeout_seconds=120,
            silence_seconds=60,
            unix_sockets=side != "tcp",
            shared_memory=side != "tcp",
        )
        assert rings[side].transport == side
    store = dist.FileStore(str(Path(folder, "gloo")), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    say(torch=torch.__version__)

    arrays: dict[int, tuple[NDArray[np.float32], NDArray[np.float32], Any]] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        num_bytes = asked["num_bytes"]
        if num_bytes not in arrays:
            arrays.clear()
            given = np.full(num_bytes // 4, rank, np.float32)
            arrays[num_bytes] = given, np.zeros_like(given), torch.zeros(num_bytes // 4)
        given, out, tensor = arrays[num_bytes]
        if asked["side"] == "gloo":
            work: Callable[[], object] = partial(dist.all_reduce, tensor)
        else:
            reduce = rings[asked["side"]].all_reduce
            work = partial(reduce, [given], [out], 64, timeout_seconds=120)
            out.fill(-1)
        seconds = timed(work, asked["times"])
        assert asked["side"] == "gloo" or (out == (size - 1) / 2).all()
        say(seconds=seconds)


def timed(work: Callable[[], object], times: int) -> float:
    """Return the seconds of one of several calls; before them is one that all ranks wait in."""
    work()
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def say(**words: object) -> None:
    """Answer the driver."""
    print(json.dumps(words), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        run_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    else:
        main()
