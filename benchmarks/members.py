"""The master with a thousand members and a million tasks, beside a bare gRPC server.

The master is a whole process (journal in SQLite, event log, heartbeat intervals), but its launcher
starts nothing. The members are simulated. Each has its own connection, registers, leases, works for
some seconds, reports with its next request, and sends heartbeats at the interval that the master
gives. The peer is a
bare gRPC server that gives each call the same answer. All members are in one other process, by
asyncio.

The results are processor seconds of the server, its memory, and the longest delay of its event
loop, which the master measures itself. Limits: half a core, 500 MB, 100 ms.

With `--costs` it measures the processor time of a task (a lease and a report, in one call and in
two) and of a heartbeat: 300 members with long tasks, and with short ones. `elasticdl simulate`
takes its costs of the master from there (`packages/simulate/published.py`).

    python benchmarks/members.py [--short] [--costs]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1]))
import grpc
import numpy as np
from member_server import TOKEN, make_config, make_data
from report import Row, Side, compare, write_results

from elasticdl.job import Outcome, TaskReport
from elasticdl.master.durable import open_job
from elasticdl.master.missing_tasks import Applied
from elasticdl.observe.events import read_events
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc import messages
from elasticdl.rpc.elasticdl_pb2_grpc import MasterStub
from elasticdl.state.memory import MemoryState

TASK_SECONDS = 10.0  # a task of the models in the model zoo takes some seconds
REGISTER_SECONDS = 5.0  # over which the members come
_METADATA = (("elasticdl-token-bin", TOKEN),)
_SERVER = Path(__file__).with_name("member_server.py")


@dataclass(frozen=True, slots=True)
class Size:
    """The size of one run."""

    num_members: int
    num_tasks: int
    seconds: float  # of the steady state
    runs: int
    task_seconds: float = TASK_SECONDS
    is_apart: bool = False  # a report is a call of its own


FULL = Size(num_members=1_000, num_tasks=1_000_000, seconds=60.0, runs=3)
SHORT = Size(num_members=200, num_tasks=100_000, seconds=8.0, runs=1)
LONG_TASKS = Size(num_members=300, num_tasks=100_000, seconds=12.0, runs=5)
SHORT_TASKS = replace(LONG_TASKS, task_seconds=1.0)


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a server in the steady state.

    cores: Processor seconds a second.
    megabytes: Resident memory at the end.
    held_ms: Longest work of its event loop without a pause, since the first member.
    late_ms: Longest delay of its event loop for any reason; nan if the server does not measure it.
    answer_ms: Time within which 99 of 100 calls were answered.
    """

    cores: float
    megabytes: float
    held_ms: float
    late_ms: float
    calls_per_second: float
    answer_ms: float
    tasks_per_second: float


def main() -> None:
    """Measure and write `benchmarks/results/members.json`, or `master.json` of `--costs`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="few runs of each, not kept")
    parser.add_argument("--costs", action="store_true", help="of a task and of a heartbeat")
    args = parser.parse_args()
    is_short = args.short
    if args.costs:
        write_costs(is_short)
        return
    size = SHORT if is_short else FULL
    loads: dict[str, list[Load]] = {"ours": [], "peer": []}
    for number in range(size.runs):
        names = ("ours", "peer") if number % 2 == 0 else ("peer", "ours")
        for name in names:
            load = measure(size, is_bare=name == "peer")
            loads[name].append(load)
            print(f"  run {number + 1}/{size.runs} {name}: {load}", file=sys.stderr, flush=True)
    title = f"{size.num_members:,} members, {size.num_tasks:,} tasks"
    rows = [
        *_both(f"{title}: processor", "% of a core", loads, lambda load: 100 * load.cores),
        *_both(f"{title}: memory", "MB", loads, lambda load: load.megabytes),
        *_both(f"{title}: 99 % of calls answered in", "ms", loads, lambda load: load.answer_ms),
        compare(
            f"{title}: the event loop was held, at most",
            "ms",
            Side(tuple(load.held_ms for load in loads["ours"]), higher_is_better=False),
        ),
        compare(
            f"{title}: the event loop was late, also because the machine was busy, at most",
            "ms",
            Side(tuple(load.late_ms for load in loads["ours"]), higher_is_better=False),
        ),
        compare(
            f"{size.num_tasks:,} tasks handed out: a ps replica comes back with half of them, "
            "time of the event loop",
            "ms of a processor",
            Side(tuple(hold_of_recovery(size.num_tasks) for _ in range(3)), higher_is_better=False),
        ),
    ]
    notes = {
        "task seconds": TASK_SECONDS,
        "steady state, seconds": size.seconds,
        "calls a second": [round(load.calls_per_second) for load in loads["ours"]],
        "limits": {"% of a core": 50, "MB": 500, "event loop held, ms": 100},
    }
    write_results("members", rows, notes, keep=not is_short)


def write_costs(is_short: bool) -> None:
    """Measure the processor time of a task and of a heartbeat, and write `results/master.json`."""
    together, apart, beats = [], [], []
    for _ in range(1 if is_short else LONG_TASKS.runs):
        sizes = (LONG_TASKS, SHORT_TASKS, replace(SHORT_TASKS, is_apart=True))
        few, many, more_calls = (measure(size, is_bare=False) for size in sizes)
        task, task_apart = (_task_seconds(few, each) for each in (many, more_calls))
        together.append(1e3 * task)
        apart.append(1e3 * task_apart)
        beats_per_second = few.calls_per_second - few.tasks_per_second
        beats.append(1e3 * (few.cores - task * few.tasks_per_second) / beats_per_second)
        costs = f"a task {together[-1]:.2f} ms, in two calls {apart[-1]:.2f} ms"
        print(f"  {costs}, a heartbeat {beats[-1]:.2f} ms", file=sys.stderr)
    in_one, in_two, beat = (
        Side(tuple(costs), higher_is_better=False) for costs in (together, apart, beats)
    )
    rows = [
        compare(
            "the master's processor: a lease and a report in one call, or two", "ms", in_one, in_two
        ),
        compare("the master's processor: a heartbeat", "ms", beat),
    ]
    write_results("master", rows, {"members": LONG_TASKS.num_members}, keep=not is_short)


def _task_seconds(few: Load, many: Load) -> float:
    """Return the processor time of a task, from two loads with the same heartbeats."""
    return (many.cores - few.cores) / (many.tasks_per_second - few.tasks_per_second)


def _both(
    what: str, unit: str, loads: dict[str, list[Load]], figure: Callable[[Load], float]
) -> list[Row]:
    sides = {
        name: Side(tuple(map(figure, found)), higher_is_better=False)
        for name, found in loads.items()
    }
    return [compare(what, unit, sides["ours"], sides["peer"])]


def measure(size: Size, is_bare: bool) -> Load:
    """Run a server and its members once."""
    with tempfile.TemporaryDirectory(prefix="members-") as folder:
        command = [sys.executable, str(_SERVER), folder, str(size.num_members), str(size.num_tasks)]
        server = subprocess.Popen([*command, "bare"] if is_bare else command)
        try:
            address = _address(Path(folder), server)
            return asyncio.run(Crowd(address, server.pid, Path(folder), size).run())
        finally:
            server.kill()
            server.wait()


def _address(folder: Path, server: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 120.0
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return str(json.loads((folder / "master.json").read_text())["address"])
        time.sleep(0.05)
    raise SystemExit("the server did not begin to listen")


class Crowd:
    """All members, and what the server did meanwhile."""

    def __init__(self, address: str, pid: int, folder: Path, size: Size) -> None:
        self._address, self._pid, self._folder, self._size = address, pid, folder, size
        self._waits: list[float] = []  # of calls in the steady state
        self._num_reports = 0
        self.is_steady = False
        self.seconds = size.seconds

    async def run(self) -> Load:
        """Play all members, and return what the server needed."""
        began = time.time()
        await self._call(self._stub().RegisterPs, _PS)
        members = [asyncio.ensure_future(self._member(n)) for n in range(self._size.num_members)]
        # Until each has registered, and has had time to be told its heartbeat interval.
        await self._wait(members, REGISTER_SECONDS + self._size.task_seconds)
        self.is_steady = True
        cpu, since = _cpu_seconds(self._pid), time.perf_counter()
        await self._wait(members, self._size.seconds)
        cpu, seconds = _cpu_seconds(self._pid) - cpu, time.perf_counter() - since
        megabytes = _resident_bytes(self._pid) / 1e6
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)
        loop = [
            event
            for event in read_events(self._folder)
            if event["event"] == "event loop" and event["time"] >= began
        ]
        return Load(
            cores=cpu / seconds,
            megabytes=megabytes,
            held_ms=1e3 * max((e["held_seconds"] for e in loop), default=float("nan")),
            late_ms=1e3 * max((e["late_seconds"] for e in loop), default=float("nan")),
            calls_per_second=len(self._waits) / seconds,
            answer_ms=1e3 * float(np.percentile(self._waits, 99)),
            tasks_per_second=self._num_reports / seconds,
        )

    async def _wait(self, members: list[asyncio.Future[None]], seconds: float) -> None:
        done, _ = await asyncio.wait(members, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for member in done:
            member.result()
            raise SystemExit("a member was let go before the end")

    def _stub(self) -> Any:
        options = [("grpc.use_local_subchannel_pool", 1)]  # a connection for each
        return MasterStub(grpc.aio.insecure_channel(self._address, options=options))

    async def _call(self, method: Any, request: Any) -> Any:
        began = time.perf_counter()
        answer = await method(request, metadata=_METADATA, timeout=60.0)
        if self.is_steady:
            self._waits.append(time.perf_counter() - began)
        return answer

    async def _member(self, index: int) -> None:
        draw = random.Random(index)
        await asyncio.sleep(draw.uniform(0.0, REGISTER_SECONDS))
        stub, session = self._stub(), f"session {index}"
        answer = await self._call(
            stub.RegisterWorker,
            pb.RegisterWorkerRequest(worker_id=index, pid=1, session=session),
        )
        beats = asyncio.ensure_future(self._beat(stub, index, session, answer.heartbeat_seconds))
        try:
            await self._work(stub, index, session, draw)
        finally:
            beats.cancel()

    async def _beat(self, stub: Any, index: int, session: str, interval: float) -> None:
        request = pb.HeartbeatRequest(
            role=pb.ROLE_WORKER, index=index, session=session, progress=_PROGRESS, usage=_USAGE
        )
        request.usage.began = time.time()
        while True:
            await asyncio.sleep(interval)
            request.interval_seconds = interval
            request.progress.num_records += 100
            passed = time.time() - request.usage.began
            for label, share in _SHARES.items():
                request.usage.label_seconds[label] = passed * share
            interval = (await self._call(stub.Heartbeat, request)).interval_seconds

    async def _work(self, stub: Any, index: int, session: str, draw: random.Random) -> None:
        number, reports = 0, list[pb.TaskReport]()
        while True:
            number += 1
            request = pb.LeaseRequest(
                worker_id=index, session=session, request=number, reports=reports
            )
            answer = await self._call(stub.Lease, request)
            reports = []
            if answer.HasField("wait"):
                await asyncio.sleep(answer.wait.seconds)
                continue
            await asyncio.sleep(draw.uniform(0.5, 1.5) * self._size.task_seconds)
            report = TaskReport(
                answer.lease.task.id,
                answer.lease.number,
                Outcome.DONE,
                num_records=100,
                loss_sum=50.0,
                num_minibatches=10,
                end_index=10,
                num_examples=100,
                staleness_histogram=(0,) * 16,
            )
            reports = [messages.REPORT.pack(report)]
            if self._size.is_apart:
                said = pb.ReportRequest(worker_id=index, session=session, report=reports.pop())
                await self._call(stub.Report, said)
            self._num_reports += self.is_steady


_PS = pb.RegisterPsRequest(index=0, pid=1, session="ps", address="localhost:1")
_STAGES = ("lease", "feed", "ids", "staleness wait", "pull", "compute", "compute wait", "push")
_PROGRESS = pb.Progress(
    num_minibatches=10, model_version=10, stage_seconds=dict.fromkeys(_STAGES, 1.25)
)
_SHARES = {
    "starting": 0.1,
    "train": 0.5,
    "wait for data": 0.2,
    "wait for parameters": 0.1,
    "idle": 0.1,
}
_USAGE = pb.Usage(
    began=1e9,
    label="train",
    label_seconds=_SHARES,
    cpu_seconds=50.0,
    resident_bytes=10**9,
    bytes_sent=10**9,
    bytes_received=10**9,
)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def hold_of_recovery(num_tasks: int) -> float:
    """Return what the event loop computes when a ps replica lacks half of all tasks, ms."""
    job, _ = open_job(MemoryState(), make_config(1), lambda: make_data(num_tasks))
    ledger = job.core.ledger
    ledger._waiting.handed.restore(num_tasks)
    # The replica has the updates before its last checkpoint, in the order of the leases.
    ids = ledger._waiting.handed._order_of(0).first(num_tasks // 2)
    applied = Applied(ids, np.full(len(ids), 10))
    began = time.thread_time()
    lacks = ledger.lacks(applied)
    ledger.replay(lacks.task_ids)
    seconds = time.thread_time() - began
    assert ledger.num_todo == num_tasks - num_tasks // 2
    return 1e3 * seconds


if __name__ == "__main__":
    main()
