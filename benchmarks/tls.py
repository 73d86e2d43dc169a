"""The cost of TLS on the tensor plane: the same calls of a client with and without it, in turn.

f_tls is the time over TCP in clear text divided by the time over TLS 1.3. The two servers are in
one separate process. The calls are pulls of 42 KB and of 1 MB of rows, and a new connection with
its first call. For a connection two lanes of a client shake hands and prove the token.
`benchmarks/store.py` prints f_tls beside f_wire.

    python benchmarks/tls.py [--slices 200]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
from report import Row, Side, compare, write_results

from elasticdl._core import PsClient
from elasticdl.job import Role
from elasticdl.runtime.credentials.authority import Authority, Identity
from elasticdl.runtime.credentials.files import TlsFiles

TOKEN = b"a token of this benchmark"
DIM, NUM_ROWS = 16, 65_536
SIZES = {"42 KB": 656, "1 MB": 16_384}
"""What is pulled, and how many rows that are."""

_SERVERS = """
import sys
from elasticdl._core import PsServer, Store
files = tuple(sys.argv[2:5])
store = Store()
plain = PsServer(store, "127.0.0.1", 0, sys.argv[1].encode())
secured = PsServer(store, "127.0.0.1", 0, sys.argv[1].encode(), tls=files)
print(plain.address, secured.address, flush=True)
sys.stdin.read()
"""


def tls_rows(num_slices: int) -> list[Row]:
    """Measure and return the lines of the report."""
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority.create(Path(folder), "benchmark")
        of_ps, of_worker = (
            authority.issue(Path(folder), Identity("benchmark", role), 3600)
            for role in (Role.PS, Role.WORKER)
        )
        with _servers(of_ps) as addresses:
            times = _measure(addresses, of_worker, num_slices)
    return [
        compare(f"f_tls, {what} (clear text)", "calls/s", _rates(tls), _rates(plain))
        for what, (plain, tls) in times.items()
    ]


@contextmanager
def _servers(files: TlsFiles) -> Iterator[list[str]]:
    words = [TOKEN.decode(), *map(str, files.as_tuple())]
    command = [sys.executable, "-c", _SERVERS, *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()
    finally:
        process.communicate()


def _measure(
    addresses: list[str], files: TlsFiles, num_slices: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Return seconds of each call, in clear text and with TLS."""

    def connect(secured: bool) -> PsClient:
        tls = files.as_tuple() if secured else None
        address = addresses[int(secured)]
        return PsClient.connect([address], TOKEN, 0, 30.0, tls=tls, unix_sockets=False)

    clients = [connect(secured) for secured in (False, True)]
    optimizer = {"kind": "sgd", "params": {}}
    initializer = {"kind": "uniform", "params": {"low": -0.05, "high": 0.05}}
    table = {"name": "table", "dim": DIM, "initializer": initializer, "optimizer": optimizer}
    model = {"tables": [table], "dense": [], "state": [], "optimizer": optimizer, "seed": 1}
    nothing = np.zeros(0, np.float32)
    for client in clients:
        client.declare(json.dumps(model), nothing, nothing)
        client.pull([(0, np.arange(NUM_ROWS))], training=True)
    times: dict[str, tuple[list[float], list[float]]] = {}

    def measure(what: str, secured: bool, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        times.setdefault(what, ([], []))[secured].append(time.perf_counter() - began)

    for index in range(num_slices):
        for secured in (False, True):
            for size, num_ids in SIZES.items():
                start = index * num_ids % (NUM_ROWS - num_ids)
                sites = [(0, np.arange(start, start + num_ids))]
                client = clients[secured]
                measure(
                    f"pull of {size}",
                    secured,
                    lambda client=client, sites=sites: client.pull(sites, training=True),
                )
            if index % 4 == 0:
                measure(
                    "connection and first call",
                    secured,
                    lambda secured=secured: connect(secured).pull([(0, np.arange(8))], False),
                )
    return times


def _rates(seconds: list[float]) -> Side:
    return Side(tuple(1 / each for each in seconds))


def main() -> None:
    """Measure and write `benchmarks/results/tls.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--slices", type=int, default=200, help="Calls of each size.")
    arguments = parser.parse_args()
    write_results("tls", tls_rows(arguments.slices), {"slices": arguments.slices})


if __name__ == "__main__":
    main()
