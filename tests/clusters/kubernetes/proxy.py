"""Answers at the cluster addresses of services, in the router: a relay to the pods behind them.

    python -m tests.clusters.kubernetes.proxy ACCESS.json

Only TCP. A service with no pod that is ready refuses connections. Data between pods that know each
other's addresses does not pass here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from pathlib import Path

from .api import Access, Api
from .services import Address, Follower

_BLOCK = 1 << 16


class Proxy:
    """Listens for every service. All methods run on the event loop."""

    def __init__(self) -> None:
        self._routes: dict[Address, list[Address]] = {}
        self._servers: dict[Address, asyncio.Server] = {}

    async def follow(self, routes: dict[Address, list[Address]]) -> None:
        """Listen where a pod is ready, and nowhere else."""
        self._routes = {address: pods for address, pods in routes.items() if pods}
        for address in self._servers.keys() - self._routes.keys():
            self._servers.pop(address).close()
        for address in self._routes.keys() - self._servers.keys():
            try:
                self._servers[address] = await asyncio.start_server(
                    lambda reader, writer, address=address: self._relay(address, reader, writer),
                    *address,
                    limit=_BLOCK,
                )
            except OSError as error:
                print(f"service {address}: {error}", file=sys.stderr, flush=True)

    async def _relay(
        self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        pods = self._routes.get(address, [])
        with contextlib.closing(writer):
            if not pods:
                return
            try:
                pod_reader, pod_writer = await asyncio.open_connection(*random.choice(pods))
            except OSError:
                return  # as if the pod had refused it
            with contextlib.closing(pod_writer):
                await asyncio.gather(_copy(reader, pod_writer), _copy(pod_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the sender ends; an end by force ends both ways."""
    try:
        while data := await reader.read(_BLOCK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


async def _run(access: Access) -> None:
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    follower = Follower(Api(access), lambda: loop.call_soon_threadsafe(changed.set))
    follower.start()
    proxy = Proxy()
    while True:
        await changed.wait()
        changed.clear()
        await proxy.follow(follower.now().routes())


def main() -> None:
    """Run until killed."""
    asyncio.run(_run(Access(**json.loads(Path(sys.argv[1]).read_text()))))


if __name__ == "__main__":
    main()
