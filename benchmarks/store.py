"""The parameter store: rows a second of one thread against the limits of memory and socket.

Bounds, each the ratio of two best slices:

- f_mem: the cache lines that pulls and pushes must touch: one line of the index, and the lines of
  the row. The bound reads random lines of the same footprint one after the other, with prefetch and
  with clean caches. A push also writes its lines back; the bound does not count this.
- f_wire: an RPC of the Rust client with frames that were made before. The time in the store, which
  the answer reports, is subtracted. The bound is an echo of the same byte counts over a Unix
  socket, with one thread and one process on each side. A second echo works as long as the store
  before it answers, because a processor takes longer to wake after a longer wait. The same RPC
  with its time in the store is also measured.
- f_e2e: `PsClient.pull` and `push` like the calls of a worker: unique ids, deduplication and the
  store. The bound is an echo of the same bytes.

- f_tls: the same calls over TCP in clear text against TLS (`benchmarks/tls.py`).

The processor time of a step of the Criteo-shaped job is measured too (512 records, two replicas).
So are the steps a second when each pull follows the push before it, in two calls and in one
exchange. `docs/designs/wire.md` explains the difference between f_wire and the RPC with its store.

Slices of some milliseconds take turns within one process: pull, push, the hash map, random lines,
copy. They use 131,072 keys in batches of 16,384, so slices of the map are longer. There are several
fresh processes. On shared machines the best slice is steadier than the median. The hash map is
Rust's, of small vectors, with one lock, one key at a time, and a separate map for each optimizer
slot. The fast map hashes by AHash and has a row beside its slots. It has 64 shards with a lock
each, taken once for a batch. `crates/edl-store/examples/bench` and `crates/edl-ps/examples/wire`
are the parts in Rust. Every table is at least ten times the last-level cache, except tables of the
wire.

    python benchmarks/store.py [--processes 5] [--slices 60] [--short]
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from replica import SERVER, child, declare_table
from report import Row, Side, compare, write_results
from tls import tls_rows

from elasticdl._core import PsClient

ROOT = Path(__file__).parent.parent
LINE_BYTES = 64
E2E_DIM, E2E_ROWS, E2E_BATCH = 8, 2_000_000, 65_536
TAKE_DIM, TAKE_ROWS, TAKE_BATCH = 16, 6_000_000, 16_384


@dataclass(frozen=True, slots=True)
class Case:
    """One table. `miss` is the share of pulled keys that have no row (pushes have none)."""

    million_rows: float
    dim: int
    optimizer: str
    keys: str = "uniform"
    miss: float = 0.0
    peer: bool = False

    @property
    def name(self) -> str:
        """The name in the results."""
        missing = f", {self.miss:.0%} missing" if self.miss else ""
        return f"{self.million_rows:g} M x {self.dim} {self.optimizer}, {self.keys}{missing}"

    def words(self, slices: int, checkpoint: str) -> list[str]:
        """Return the settings for the part in Rust."""
        return [
            f"rows={self.million_rows}",
            f"dim={self.dim}",
            f"optimizer={self.optimizer}",
            f"keys={self.keys}",
            f"miss={self.miss}",
            f"peer={int(self.peer)}",
            f"slices={slices}",
            f"checkpoint={checkpoint}",
        ]


CHECKPOINTED = Case(4, 16, "adagrad")
CASES = (
    Case(10, 16, "adagrad", peer=True),
    CHECKPOINTED,
    Case(4, 16, "adagrad", keys="zipf"),
    Case(4, 16, "adagrad", miss=0.1),
    Case(10, 1, "ftrl", peer=True),
    Case(5, 8, "adagrad"),
    Case(3, 16, "adam"),
    Case(2, 64, "sgd"),
)


def main() -> None:
    """Measure and write `benchmarks/results/store.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=5, help="Fresh processes of each case.")
    parser.add_argument("--slices", type=int, default=60, help="Slices of each in a process.")
    parser.add_argument("--short", action="store_true", help="One process, few slices, not kept.")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.processes, arguments.slices = 1, 4
    binary = build("edl-store", "bench", "--features", "stages")
    wire_binary = build("edl-ps", "wire")
    load_before = os.getloadavg()
    found: dict[Case, list[dict[str, Any]]] = {case: [] for case in CASES}
    take: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.processes):
            for case in CASES:
                words = case.words(arguments.slices, folder if case is CHECKPOINTED else "")
                output = subprocess.run([binary, *words], check=True, stdout=subprocess.PIPE)
                found[case].append(json.loads(output.stdout))
                print(f"  process {number + 1}/{arguments.processes}: {case.name}", file=sys.stderr)
            take += numpy_take(arguments.slices)
    bare = {
        shape: bare_wire(wire_binary, arguments.processes, shape, arguments.slices)
        for shape in WIRE_SHAPES
    }
    wire = over_the_wire(arguments.processes, arguments.slices)
    rows = [row for case in CASES for row in case_rows(case, found[case])]
    rows += one_table_rows(found[CHECKPOINTED], Side(tuple(take)))
    rows += bare_rows(bare) + wire_rows(wire) + tls_rows(arguments.slices)
    notes = {
        "processes": arguments.processes,
        "slices_of_each_process": arguments.slices,
        "hit_miss": "all pulled and pushed keys have rows, but for the share named as missing",
        "last_level_cache_bytes": last_level_cache(),
        "load_average_before": [round(load, 2) for load in load_before],
        "transparent_huge_pages": huge_page_state(),
        "cases": {case.name: case_notes(found[case]) for case in CASES},
        "targets": {
            "pull against hash map": 8,
            "adagrad push against hash map": 14,
            "f_wire": 0.6,
            "client pull, M rows/s": 4,
            "client push, M rows/s": 3,
            "checkpoint, MB/s": 500,
            "training while checkpointing": 0.9,
        },
    }
    write_results("store", rows, notes, keep=not arguments.short)
    print_pages(notes)


def build(package: str, example: str, *options: str) -> str:
    """Compile a part in Rust; return its path."""
    command = ["cargo", "build", "--release", "--locked", "--package", package]
    subprocess.run([*command, "--example", example, *options], check=True, cwd=ROOT)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    return str(target / "release/examples" / example)


# --- in process -----------------------------------------------------------------------------------


def slices(processes: list[dict[str, Any]], what: str, times: float = 1.0) -> Side:
    """Return all slices of one kind of work."""
    return Side(tuple(rate * times for found in processes for rate in found["rates"][what]))


def lines_of(num_floats: int) -> int:
    """Return the cache lines that a lookup touches: one of the index, those of the row."""
    return 1 + max(1, -(-4 * num_floats // LINE_BYTES))


def case_rows(case: Case, processes: list[dict[str, Any]]) -> list[Row]:
    """Return the lines of the report for one table."""
    rows = []
    touched = {"pull": lines_of(case.dim), "push": lines_of(processes[0]["width"])}
    for what, lines in touched.items():
        ours = slices(processes, what)
        peer = slices(processes, f"plain_{what}") if case.peer else None
        against = " (hash map)" if case.peer else ""
        rows.append(compare(f"{what}: {case.name}{against}", "M rows/s", ours, peer))
        if case.peer:
            fast = slices(processes, f"sharded_{what}")
            rows.append(compare(f"{what}: {case.name} (fast hash map)", "M rows/s", ours, fast))
        ours, bound = slices(processes, what, lines), slices(processes, "lines")
        rows.append(compare(f"f_mem {what}: {case.name}", "M lines/s", ours, bound))
        for stage in STAGES if case.peer else ():
            times = stage_times(processes, what, stage)
            rows.append(compare(f"{what}, {stage}: {case.name}", "ns/key", times))
    return rows


STAGES = ("sort", "index", "rows")
"""Of a pull and of a push: keys by shard, their rows found, the rows copied or updated."""


def stage_times(processes: list[dict[str, Any]], what: str, stage: str) -> Side:
    """Return what one stage of a pull or a push took."""
    every = (time for found in processes for time in found["stages"][what][stage])
    return Side(tuple(every), higher_is_better=False)


def one_table_rows(processes: list[dict[str, Any]], take: Side) -> list[Row]:
    """Return what is measured of one table only."""

    def side(*path: str, higher_is_better: bool = True) -> Side:
        def values(found: Any) -> list[float]:
            for name in path:
                found = found[name]
            return found if isinstance(found, list) else [float(found)]

        every = (value for found in processes for value in values(found))
        return Side(tuple(every), higher_is_better)

    alone, meanwhile = side("checkpoint", "pushes_alone"), side("checkpoint", "pushes_meanwhile")
    name = CHECKPOINTED.name
    return [
        compare(
            "random lines asked for ahead (none asked for)",
            "M lines/s",
            slices(processes, "lines"),
            slices(processes, "lines_unasked"),
        ),
        compare(
            "random lines asked for ahead, just after pushes",
            "M lines/s",
            slices(processes, "lines_after_pushes"),
        ),
        compare(f"pull: {name} (numpy.take)", "M rows/s", slices(processes, "pull"), take),
        compare("memcpy", "GB/s", slices(processes, "memcpy")),
        compare(f"insert: {name}", "M rows/s", side("insert", "rate")),
        compare(
            "insert, without the kernel's time", "M rows/s", side("insert", "rate_without_kernel")
        ),
        compare(
            "longest pause of one insert", "ms", side("longest_insert_ms", higher_is_better=False)
        ),
        compare("checkpoint written, no updates", "MB/s", side("checkpoint", "written_mb")),
        compare(
            "checkpoint written while pushes come",
            "MB/s",
            side("checkpoint", "written_mb_meanwhile"),
        ),
        compare(
            "checkpoint written, by processor time of the writer",
            "MB/s",
            side("checkpoint", "written_mb_of_processor_second"),
        ),
        compare("checkpoint restored", "MB/s", side("checkpoint", "restored_mb")),
        compare("pushes while a checkpoint is written (alone)", "pushes/s", meanwhile, alone),
    ]


def case_notes(processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Say how large a table was, and how much of it lay in huge pages."""
    first = processes[0]
    names = ("rows", "store_bytes", "bytes_per_row", "resident_growth_bytes", "huge_page_bytes")
    return {name: first[name] for name in names}


def print_pages(notes: dict[str, Any]) -> None:
    """Say beside the figures how busy the machine was before, and how the tables lay in memory."""
    load = " ".join(map(str, notes["load_average_before"]))
    print(f"load average before {load}; transparent huge pages: {notes['transparent_huge_pages']}")
    for name, case in notes["cases"].items():
        total, huge = case["store_bytes"] / 1e9, case["huge_page_bytes"] / 1e9
        print(f"  {name}: {total:.2f} GB, {huge:.2f} GB of the process in huge pages")


def numpy_take(num_slices: int) -> list[float]:
    """Rows a second of taking random rows of a dense array: no keys, no growth, no lock."""
    array = np.ones((TAKE_ROWS, TAKE_DIM), np.float32)
    out = np.empty((TAKE_BATCH, TAKE_DIM), np.float32)
    random = np.random.default_rng(0)
    rates = []
    for _ in range(num_slices):
        at = random.integers(0, TAKE_ROWS, TAKE_BATCH)
        seconds = timed(lambda at=at: np.take(array, at, axis=0, out=out, mode="clip"))
        rates.append(TAKE_BATCH / seconds / 1e6)
    return rates


def last_level_cache() -> int:
    """Return the bytes of the last-level cache; 0 if the system does not say."""
    folders = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    return int(folders[-1].read_text().strip().removesuffix("K")) * 1024 if folders else 0


def huge_page_state() -> str:
    """Return how the kernel gives huge pages, such as `madvise`."""
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    text = path.read_text() if path.is_file() else "[absent]"
    return text.partition("[")[2].partition("]")[0]


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# --- over the wire --------------------------------------------------------------------------------

Seconds = dict[str, list[float]]
"""What `crates/edl-ps/examples/wire` prints: seconds of each slice, by what was done."""

WIRE_SHAPES = {
    "65,536 keys": ("shape=calls", "batch=65536"),
    "8,192 keys": ("shape=calls", "batch=8192"),
    "step": ("shape=step", "batch=512"),
    "ordered, 512 records": ("shape=ordered", "batch=512"),
    "ordered, 32 records": ("shape=ordered", "batch=32"),
}


def bare_wire(binary: str, processes: int, shape: str, num_slices: int) -> Seconds:
    """Run one case of the part in Rust in fresh processes; return all their slices."""
    found: Seconds = {}
    for number in range(processes):
        command = [binary, *WIRE_SHAPES[shape], f"slices={num_slices}"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        for name, seconds in json.loads(output.stdout).items():
            found.setdefault(name, []).extend(seconds)
        print(f"  process {number + 1}/{processes}: wire, {shape}", file=sys.stderr)
    return found


def bare_rows(found: dict[str, Seconds]) -> list[Row]:
    """Return the lines of the report for the wire without Python."""
    rows = []
    for shape, batch in (("65,536 keys", 65536), ("8,192 keys", 8192)):
        for what in ("pull", "push"):

            def rate(name: str, shape: str = shape, batch: int = batch) -> Side:
                return Side(tuple(batch / taken / 1e6 for taken in found[shape][name]))

            call = f"{what}, {shape}, dim {E2E_DIM}"
            echo, late = rate(f"echo {what}"), rate(f"late echo {what} without the store")
            wire, whole = rate(f"rpc {what} without the store"), rate(f"rpc {what}")
            rows.append(compare(f"f_wire {call} (echo)", "M rows/s", wire, echo))
            late_echo = "echo after as long as the store takes, without that time"
            rows.append(compare(f"f_wire {call} ({late_echo})", "M rows/s", wire, late))
            rows.append(compare(f"RPC with the store {call} (echo)", "M rows/s", whole, echo))
    for name in ("client cpu", "replicas cpu", "replicas in the store"):
        times = Side(tuple(1e6 * taken for taken in found["step"][name]), higher_is_better=False)
        rows.append(compare(f"Criteo-shaped step: {name}", "us", times))
    for shape in ("ordered, 512 records", "ordered, 32 records"):
        together, apart = (
            Side(tuple(1 / taken for taken in found[shape][name])) for name in ("together", "apart")
        )
        what = f"{shape}: push and next pull in one exchange (apart)"
        rows.append(compare(what, "steps/s", together, apart))
    return rows


_ECHO = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
peer, _ = listener.accept()
reply = bytes(1 << 24)
buffer = memoryview(bytearray(1 << 24))
def take(count):
    at = 0
    while at < count:
        got = peer.recv_into(buffer[at:count])
        if not got:
            sys.exit()
        at += got
while True:
    take(16)
    request, answer = int.from_bytes(buffer[:8], "little"), int.from_bytes(buffer[8:16], "little")
    take(request)
    peer.sendall(memoryview(reply)[:answer])
"""


class Echo:
    """RPCs that carry bytes and do nothing else."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._out = bytes(1 << 24)
        self._in = memoryview(bytearray(1 << 24))

    def call(self, request: int, answer: int) -> None:
        """Send so many bytes, receive so many."""
        self._socket.sendall(request.to_bytes(8, "little") + answer.to_bytes(8, "little"))
        self._socket.sendall(memoryview(self._out)[:request])
        at = 0
        while at < answer:
            at += self._socket.recv_into(self._in[at:answer])

    def close(self) -> None:
        """End the connection, and with it the peer."""
        self._socket.close()


def over_the_wire(processes: int, num_slices: int) -> dict[str, Side]:
    """Measure client calls and echoes in turn, one table of the server for all."""
    rates: dict[str, list[float]] = {}
    for number in range(processes):
        token = secrets.token_hex(16)
        with tempfile.TemporaryDirectory() as folder, child(SERVER, token) as (address, _):
            path = f"{folder}/echo"
            with child(_ECHO, path):
                echo = Echo(path)
                client = PsClient.connect([address], token.encode(), 0, 30.0)
                for name, found in wire_slices(client, echo, num_slices).items():
                    rates.setdefault(name, []).extend(found)
                echo.close()
        print(f"  process {number + 1}/{processes}: client and server", file=sys.stderr)
    return {name: Side(tuple(found)) for name, found in rates.items()}


def wire_slices(client: PsClient, echo: Echo, num_slices: int) -> dict[str, list[float]]:
    """Return millions of rows a second of pulls, pushes, and echoes of as many bytes."""
    declare_table(client, E2E_DIM)
    nothing = np.zeros(0, np.float32)
    client.begin_task(0, 1)
    everything = np.random.default_rng(0).permutation(E2E_ROWS).astype(np.int64)
    for ids in np.array_split(everything, E2E_ROWS // E2E_BATCH):
        client.pull([(0, ids)], training=True)
    random = np.random.default_rng(1)
    grads = np.full((E2E_BATCH, E2E_DIM), 0.01, np.float32)
    key_bytes, row_bytes = 8 * E2E_BATCH, 4 * E2E_DIM * E2E_BATCH
    rates: dict[str, list[float]] = {"pull": [], "push": [], "echo pull": [], "echo push": []}

    def measure(name: str, work: Callable[[], object]) -> None:
        rates[name].append(E2E_BATCH / timed(work) / 1e6)

    for index in range(num_slices):
        ids = random.choice(everything, E2E_BATCH, replace=False)
        measure("pull", lambda ids=ids: client.pull([(0, ids)], training=True))
        measure("echo pull", lambda: echo.call(key_bytes, row_bytes))
        pulled = client.pull([(0, ids)], training=True)
        measure(
            "push",
            lambda pulled=pulled, index=index: client.push(
                pulled, [grads], nothing, nothing, 0.01, 0, 1, index, 1
            ),
        )
        measure("echo push", lambda: echo.call(key_bytes + row_bytes, 64))
    return rates


def wire_rows(wire: dict[str, Side]) -> list[Row]:
    """Return the lines of the report for the client and its server."""
    return [
        compare(
            f"f_e2e: PsClient.{what}, {E2E_BATCH} unique ids, dim {E2E_DIM} (echo)",
            "M rows/s",
            wire[what],
            wire[f"echo {what}"],
        )
        for what in ("pull", "push")
    ]


if __name__ == "__main__":
    main()
