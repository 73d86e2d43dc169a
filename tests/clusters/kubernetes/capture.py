"""Records every packet that passes a cluster's router: what one on its network could read.

    python -m tests.clusters.kubernetes.capture FILE    # in the router's network, until SIGTERM

All traffic between pods, and between pods and the host, passes there, mostly twice.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from . import processes
from .network import Network
from .sandbox import REPOSITORY

_LOOK_SECONDS = 0.05
_RECORDS, _LOST = "records", "packets lost: "

# Of Linux' headers; Python's socket module does not have them.
_ALL_PROTOCOLS = 3
_FORCE_BUFFER = 33
_OF_PACKETS, _STATISTICS = 263, 6

_BUFFER_BYTES = 64 << 20
_PACKET_BYTES = 1 << 18  # a wire within one machine carries many segments as one


class Capture:
    """Records within a block what passes the router."""

    def __init__(self, network: Network, file: Path) -> None:
        """Describe it; `file` takes the bytes of all packets, one after the other."""
        self._network = network
        self._file = file
        self._log = file.with_suffix(".log")

    def __enter__(self) -> Capture:
        command = [sys.executable, "-m", "tests.clusters.kubernetes.capture", str(self._file)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        self._process: subprocess.Popen[bytes] = processes.start(
            self._network.in_router(command), self._log, environment
        )
        while not self._log.read_text().startswith(_RECORDS):
            if self._process.poll() is not None:
                raise RuntimeError(f"packets cannot be recorded: {self._log.read_text()}")
            time.sleep(_LOOK_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        processes.stop(self._process)

    def heard(self) -> bytes:
        """Return what was recorded; after the block.

        Raises:
            RuntimeError: Packets were lost, so nothing follows from what was not heard.
        """
        last = processes.last_lines(self._log, 1)
        if last != f"{_LOST}0":
            raise RuntimeError(f"expected a recording of all packets, found {last!r}")
        return self._file.read_bytes()


def main() -> None:
    """Record up to SIGTERM, and say how many packets were lost."""
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_end.append(number))
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    packets.setsockopt(socket.SOL_SOCKET, _FORCE_BUFFER, _BUFFER_BYTES)
    packets.settimeout(_LOOK_SECONDS)
    with packets, Path(sys.argv[1]).open("wb") as file:
        print(_RECORDS, flush=True)
        while True:
            try:
                file.write(packets.recv(_PACKET_BYTES))
            except TimeoutError:
                if asked_to_end:
                    break
        _, lost = struct.unpack("II", packets.getsockopt(_OF_PACKETS, _STATISTICS, 8))
    print(f"{_LOST}{lost}", flush=True)


if __name__ == "__main__":
    main()
