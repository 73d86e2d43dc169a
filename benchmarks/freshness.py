"""The time from an update to the served row: export, verification and layers.

    python benchmarks/freshness.py [--rows=1000000] [--events=5000] [--every=0.3] [--seconds=20]

This process has two ps replicas, and a publisher and a follower like those of a job and of
`elasticdl serve`; no model computes. Each event updates the row of one id. The benchmark prints for
some events the time from the answer to the push until the follower's tables have the row.
"""

import argparse
import json
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from elasticdl._core import PsClient, PsServer, Store
from elasticdl.backends.base import Initializer, ModelDescription, OptimizerSpec, TableDescription
from elasticdl.packages.serving.publishing import Publisher, write_program
from elasticdl.packages.serving.versions import Versions

NOTHING = np.zeros(0, np.float32)
DIM, MINIBATCH = 16, 100


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=5_000, help="a second")
    parser.add_argument("--every", type=float, default=0.3, help="seconds between versions")
    parser.add_argument("--poll", type=float, default=0.1, help="seconds between looks at CURRENT")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--short", action="store_true", help="20,000 rows, for three seconds")
    words = parser.parse_args()
    if words.short:
        words.rows, words.seconds = 20_000, 3.0
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(words, Path(folder)), indent=1))


def measure(words: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Return delays in seconds, and what a version cost."""
    servers = [PsServer(Store(r, 2), "127.0.0.1", 0, b"token") for r in range(2)]
    addresses = [server.address for server in servers]
    client, exporter = (PsClient.connect(addresses, b"token", n, 30) for n in range(2))
    uniform, rule = Initializer("uniform", {"low": -0.05, "high": 0.05}), OptimizerSpec("sgd")
    model = ModelDescription((TableDescription("t", DIM, uniform, rule),), (), (), rule, seed=1)
    client.declare(json.dumps(asdict(model)), NOTHING, NOTHING)
    for first in range(0, words.rows, 50_000):
        client.pull([(0, np.arange(first, min(words.rows, first + 50_000)))], training=True)
    program = write_program(folder, lambda place: (place / "file").write_text(""))
    publisher = Publisher(folder, "job", full_every=1_000, keep=20)
    began = time.perf_counter()
    publisher.publish(0, program, exporter.export)
    base_seconds = time.perf_counter() - began
    over, published, loaded = threading.Event(), [], []
    follower = Versions(folder, folder / "scratch")
    version = follower.next(None)

    def publish() -> None:
        while not over.is_set():
            began = time.perf_counter()
            publisher.publish(1, program, exporter.export)
            published.append(time.perf_counter() - began)
            over.wait(max(0.0, words.every - published[-1]))

    served = [version]
    seen_at: list[tuple[float, object]] = []

    def follow() -> None:
        while not over.is_set():
            began = time.perf_counter()
            if (found := follower.next(served[0])) is not None:
                served[0] = found
                now = time.perf_counter()
                loaded.append(now - began)
                seen_at.append((now, found.tables))
            over.wait(words.poll)

    threads = [threading.Thread(target=work) for work in (publish, follow)]
    for thread in threads:
        thread.start()
    probes, delays, num_events = [], [], 0
    rng, began, index = np.random.default_rng(0), time.perf_counter(), 0
    while time.perf_counter() - began < words.seconds:
        keys = rng.choice(words.rows, MINIBATCH, replace=False)
        pulled = client.pull([(0, keys)], training=True)
        grads = rng.normal(size=(1, MINIBATCH, DIM)).astype(np.float32)
        client.push(pulled, list(grads), NOTHING, NOTHING, 0.1, 1, 1, index, MINIBATCH)
        acknowledged = time.perf_counter()
        probes.append((acknowledged, int(keys[0]), (pulled.rows[0][0] - 0.1 * grads[0][0])))
        index, num_events = index + 1, num_events + MINIBATCH
        time.sleep(max(0.0, began + num_events / words.events - time.perf_counter()))
    time.sleep(3.0)
    over.set()
    for thread in threads:
        thread.join()
    last = {key: number for number, (_, key, _) in enumerate(probes)}
    out = np.empty((1, DIM), np.float32)
    for number, (acknowledged, key, row) in enumerate(probes):
        if last[key] != number:
            continue
        for now, tables in seen_at:
            if now < acknowledged:
                continue
            tables.look_up(0, np.array([key]), 0.0, out)
            if np.allclose(out[0], row, atol=1e-6):
                delays.append(now - acknowledged)
                break
    for server in servers:
        server.stop()
    quantiles = np.quantile(delays, [0.5, 0.99, 1.0])
    return {
        "rows": words.rows,
        "events_per_second": round(num_events / words.seconds),
        "probes": len(delays),
        "missed": len(last) - len(delays),
        "p50_seconds": round(float(quantiles[0]), 3),
        "p99_seconds": round(float(quantiles[1]), 3),
        "max_seconds": round(float(quantiles[2]), 3),
        "base_seconds": round(base_seconds, 3),
        "delta_seconds": round(float(np.median(published)), 3),
        "load_seconds": round(float(np.median(loaded)), 3),
        "versions": len(published),
    }


if __name__ == "__main__":
    main()
