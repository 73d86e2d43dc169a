"""A training job whose embedding rows lie in Redis, as in the first design of ElasticDL (2019).

    PYTHONPATH=model_zoo python benchmarks/peers/redis_store.py --model=criteo --style=get

prints the records/s of all workers as JSON. A row is the value of the key `TABLE-ID`. A worker
looks up the rows of a minibatch's unique ids by a pipeline of GETs (`--style=get`) or by the faster
MGET (`--style=mget`). It creates missing rows by SET NX and computes with one thread. Then it reads
the rows and the optimizer's slots once more, updates them, and writes them back. The other
parameters stay in each worker, which is faster than the design of 2019. Minibatches come from
memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import redis
from numpy.typing import NDArray

Floats = NDArray[np.float32]
LEARNING_RATE = 0.05
START_SECONDS = 30.0


class Tables:
    """Rows in Redis servers, by id modulo the number of servers."""

    def __init__(self, sockets: Sequence[str], style: str) -> None:
        self._servers = [redis.Redis(unix_socket_path=path) for path in sockets]
        self._style = style

    def pull(self, table: str, ids: Sequence[int], dim: int, fill: Callable[..., Any]) -> Floats:
        """Return the rows (n, dim) of unique ids; missing ones begin as `fill(shape)`."""
        rows = np.empty((len(ids), dim), np.float32)
        for server, keys, places in self._split(table, ids):
            values = self._get(server, keys)
            missing = [place for place, value in enumerate(values) if value is None]
            if missing:
                new = np.asarray(fill((len(missing), dim)), np.float32)
                created = [keys[place] for place in missing]
                self._set(server, created, new, only_new=True)
                for place, value in zip(missing, self._get(server, created), strict=True):
                    values[place] = value
            rows[places] = np.frombuffer(b"".join(values), np.float32).reshape(-1, dim)
        return rows

    def put(self, table: str, ids: Sequence[int], rows: Floats) -> None:
        """Replace rows."""
        for server, keys, places in self._split(table, ids):
            self._set(server, keys, rows[places])

    def _split(self, table: str, ids: Sequence[int]) -> list[tuple[Any, list[str], list[int]]]:
        parts: list[tuple[Any, list[str], list[int]]] = [(s, [], []) for s in self._servers]
        for place, number in enumerate(ids):
            _server, keys, places = parts[number % len(parts)]
            keys.append(f"{table}-{number}")
            places.append(place)
        return [part for part in parts if part[1]]

    def _get(self, server: Any, keys: list[str]) -> list[Any]:
        if self._style == "mget":
            return list(server.mget(keys))
        pipeline = server.pipeline(transaction=False)
        for key in keys:
            pipeline.get(key)
        return list(pipeline.execute())

    def _set(self, server: Any, keys: list[str], rows: Floats, only_new: bool = False) -> None:
        if self._style == "mget" and not only_new:
            server.mset(dict(zip(keys, (row.tobytes() for row in rows), strict=True)))
            return
        pipeline = server.pipeline(transaction=False)
        for key, row in zip(keys, rows, strict=True):
            pipeline.set(key, row.tobytes(), nx=only_new)
        pipeline.execute()


class Optimizer:
    """The update of rows in the client: read, change, write; no lock, as asynchronous SGD."""

    def __init__(self, kind: str, tables: Tables) -> None:
        self._kind = kind
        self._tables = tables
        self._step = 0

    def push(self, table: str, ids: Sequence[int], gradients: Floats, fill: Any) -> None:
        """Update the rows of unique ids by their summed gradients (n, dim)."""
        dim = gradients.shape[1]

        def slot(name: str, value: float) -> Floats:
            return self._tables.pull(f"{table}-{name}", ids, dim, lambda s: np.full(s, value))

        rows = self._tables.pull(table, ids, dim, fill)
        slots: dict[str, Floats] = {}
        if self._kind == "sgd":
            rows = rows - LEARNING_RATE * gradients
        elif self._kind == "adagrad":
            slots["sum"] = slot("sum", 0.1) + gradients * gradients
            rows = rows - LEARNING_RATE * gradients / np.sqrt(slots["sum"] + 1e-7)
        else:
            self._step += 1
            slots["m"] = 0.9 * slot("m", 0.0) + 0.1 * gradients
            slots["v"] = 0.999 * slot("v", 0.0) + 0.001 * gradients * gradients
            first = slots["m"] / (1 - 0.9**self._step)
            second = slots["v"] / (1 - 0.999**self._step)
            rows = rows - 0.001 * first / (np.sqrt(second) + 1e-7)
        self._tables.put(table, ids, rows.astype(np.float32))
        for name, values in slots.items():
            self._tables.put(f"{table}-{name}", ids, values.astype(np.float32))


def uniform(shape: Any) -> Any:
    """Return initial vectors."""
    return np.random.default_rng().uniform(-0.05, 0.05, shape)


def work(args: argparse.Namespace) -> None:
    """Be a worker: say READY, wait for a line, train for some seconds, print the records/s."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    from redis_models import CriteoModel, FlightsModel, rate

    model = {"criteo": CriteoModel, "flights": FlightsModel}[args.model]()
    tables = Tables(args.work.split(","), args.style)
    optimizer = Optimizer(args.optimizer, tables)
    data = model.minibatches(20, args.minibatch_size, args.rank)

    def step(number: int) -> None:
        inputs, ids, labels = data[number % len(data)]
        unique, places = np.unique(ids, return_inverse=True)
        keys = unique.tolist()
        vectors = tables.pull("vectors", keys, model.DIM, uniform)
        weights = tables.pull("weights", keys, 1, np.zeros)
        gradients = model.step(
            inputs, vectors, weights, places.reshape(ids.shape).astype(np.int32), labels
        )
        optimizer.push("vectors", keys, gradients[0].numpy(), uniform)
        optimizer.push("weights", keys, gradients[1].numpy(), np.zeros)

    step(0)
    print("READY", flush=True)
    sys.stdin.readline()
    print(json.dumps(rate(step, args.minibatch_size, args.seconds)), flush=True)


def run(args: argparse.Namespace) -> float:
    """Start servers and workers; return the records/s of all workers together."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis_store.py: redis-server is missing; Debian's package redis-server")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="redis-")))
        sockets = [str(folder / f"{number}.sock") for number in range(args.servers)]
        for path in sockets:
            command = [program, "--port", "0", "--unixsocket", path]
            command += ["--save", "", "--appendonly", "no", "--dir", str(folder)]
            _start(stack, command, stdout=subprocess.DEVNULL)
        for path in sockets:
            _wait_for(path)
        workers = []
        for rank in range(args.workers):
            command = [sys.executable, __file__, *sys.argv[1:]]
            command += [f"--work={','.join(sockets)}", f"--rank={rank}"]
            workers.append(
                _start(stack, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for worker in workers:
            if worker.stdout.readline() != "READY\n":
                raise SystemExit("redis_store.py: a worker failed, see above")
        for worker in workers:
            worker.stdin.write("\n")
            worker.stdin.flush()
        return sum(json.loads(worker.stdout.readline()) for worker in workers)


def _start(stack: ExitStack, command: list[str], **options: Any) -> Any:
    process = subprocess.Popen(command, **options)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _wait_for(path: str) -> None:
    client = redis.Redis(unix_socket_path=path)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            client.ping()
            return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> None:
    """Run the job, or one worker of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("criteo", "flights"), default="criteo")
    parser.add_argument("--optimizer", choices=("sgd", "adagrad", "adam"), default="sgd")
    parser.add_argument("--style", choices=("get", "mget"), default="get")
    parser.add_argument("--minibatch_size", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args)
    else:
        print(json.dumps({"records_per_second": run(args)}))


if __name__ == "__main__":
    main()
