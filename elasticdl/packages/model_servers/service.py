"""The gRPC front of a model server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import grpc
import numpy as np

from elasticdl.backends.base import Float32, Int64
from elasticdl.errors import ElasticdlError
from elasticdl.packages.frameworks.towers import Tower
from elasticdl.packages.model_servers.computer import TowerComputer
from elasticdl.packages.model_servers.messages import SIZE_LIMITS, dense_of, floats_of, ids_of
from elasticdl.packages.model_servers.windows import MAX_IDS, RequestWindows, ServerCounts
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import Authentication, Defects, server_options
from elasticdl.rpc.codec import MessageError
from elasticdl.rpc.elasticdl_pb2_grpc import (
    ModelServerServicer,
    add_ModelServerServicer_to_server,
)
from elasticdl.worker.row_source import SiteGradient

T = TypeVar("T")
Answer = TypeVar("Answer", pb.ForwardResponse, pb.BackwardResponse)


class TowerService(ModelServerServicer):
    """`elasticdl.v1.ModelServer`. The methods are documented in the `.proto`."""

    def __init__(
        self, towers: Sequence[Tower], computer: TowerComputer, window_seconds: float
    ) -> None:
        """Prepare to answer."""
        self.counts = ServerCounts()
        self._towers = towers
        self._computer = computer
        self._thread = ThreadPoolExecutor(1, "towers")
        self._free = asyncio.Lock()
        self._windows = RequestWindows(self._forward, window_seconds, self.counts, self._free)

    async def Forward(
        self, request: pb.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> pb.ForwardResponse:
        """Answer with the outputs of the window of this request."""

        async def answer() -> pb.ForwardResponse:
            self._width(request.tower)
            ids, dense = _bounded(ids_of(request.ids)), request.dense
            dense_of(dense, self._towers[request.tower])
            asked = self._windows.ask(context.peer(), request.tower, request.training, ids, dense)
            outputs, window = await asked
            return pb.ForwardResponse(outputs=outputs.astype("<f4").tobytes(), window=window)

        return await self._answered(context, request, answer)

    async def Backward(
        self, request: pb.BackwardRequest, context: grpc.aio.ServicerContext
    ) -> pb.BackwardResponse:
        """Answer with the gradients within a tower."""

        async def answer() -> pb.BackwardResponse:
            width = self._width(request.tower)
            ids = _bounded(ids_of(request.ids))
            gradients = floats_of(request.gradients, width)
            if len(gradients) != len(ids):
                raise MessageError(f"expected a gradient for each of {len(ids)} ids")
            self.counts.backwards += 1
            dense = dense_of(request.dense, self._towers[request.tower])
            asked = request.tower, ids, gradients, request.window, dense
            async with self._free:
                found = await self._computed(lambda: self._computer.backward(*asked))
            return pb.BackwardResponse(
                dense=found.dense.astype("<f4").tobytes(),
                sites=[_message_of(site) for site in found.sites if site.ids.size],
            )

        return await self._answered(context, request, answer)

    async def _answered(
        self,
        context: grpc.aio.ServicerContext,
        request: pb.ForwardRequest | pb.BackwardRequest,
        answer: Callable[[], Awaitable[Answer]],
    ) -> Answer:
        try:
            found = await answer()
        except MessageError as error:
            # `abort` raises; the `raise` after it tells a type checker so.
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        except ElasticdlError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise
        self.counts.received_bytes += request.ByteSize()
        self.counts.sent_bytes += found.ByteSize()
        return found

    def _width(self, tower: int) -> int:
        if tower >= len(self._towers):
            raise MessageError(f"no tower {tower}: the model has {len(self._towers)}")
        return self._towers[tower].dim

    async def _forward(
        self, tower: int, training: bool, dense: bytes, ids: Int64
    ) -> tuple[Float32, int]:
        brought = dense_of(dense, self._towers[tower])
        return await self._computed(lambda: self._computer.forward(tower, training, ids, brought))

    async def _computed(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def make_server(service: TowerService, token: bytes) -> grpc.aio.Server:
    """Return a server that is not started, and has no port yet."""
    options = list({**dict(server_options()), **dict(SIZE_LIMITS)}.items())
    server = grpc.aio.server(interceptors=[Authentication(token), Defects()], options=options)
    add_ModelServerServicer_to_server(service, server)
    return server


def _bounded(ids: Int64) -> Int64:
    if not 0 < len(ids) <= MAX_IDS:
        raise MessageError(f"expected 1 to {MAX_IDS} ids, found {len(ids)}")
    return ids


def _message_of(site: SiteGradient) -> pb.SiteGradients:
    return pb.SiteGradients(
        table=site.table,
        ids=np.ascontiguousarray(site.ids, "<i8").tobytes(),
        gradients=np.ascontiguousarray(site.gradient, "<f4").tobytes(),
    )
