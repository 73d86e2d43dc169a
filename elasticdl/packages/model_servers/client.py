"""Asks the model servers of a job, as long as one of them is there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from elasticdl.backends.base import Float32, Int64
from elasticdl.errors import AuthenticationError, ElasticdlError, ModelError, UnavailableError
from elasticdl.packages.frameworks.towers import Tower
from elasticdl.packages.model_servers.messages import SIZE_LIMITS, check_size, floats_of
from elasticdl.packages.model_servers.tower_rows import Question, TowerAnswer, TowerGradients
from elasticdl.packages.model_servers.windows import MAX_IDS
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import CLIENT_OPTIONS, TOKEN_KEY
from elasticdl.rpc.elasticdl_pb2_grpc import ModelServerStub
from elasticdl.rpc.security import open_channel
from elasticdl.runtime.credentials.files import Stamp, TlsFiles
from elasticdl.worker.row_source import SiteGradient

log = logging.getLogger(__name__)

MODEL_SERVER_NAME = "modelserver.elasticdl"
"""The name in the certificate of every model server."""

_ATTEMPT_SECONDS = 60.0  # a first call traces the tower
_GIVE_UP_SECONDS = 600.0
_LOOK_SECONDS = 1.0  # while a server is away, whether it is back
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_OTHERS = np.uint64(0x9E3779B97F4A7C15)  # spreads ids that follow each other
_TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a question, for one server; `places` are those of its ids in the question."""

    question: int
    server: int
    places: Int64


@dataclass(slots=True)
class _Call:
    """A request and, once there is one, its answer."""

    server: int
    method: str
    request: Any
    answer: Any = None


class ModelServers:
    """The model servers of a job; implements `AsksTowers`.

    An id belongs to one server as long as that server is there. So the id is computed once for all
    workers that ask at the same time. Servers keep nothing: a request that one does not answer is
    sent to the next one.
    """

    def __init__(
        self,
        towers: Sequence[Tower],
        find: Callable[[], Sequence[str]],
        token: bytes,
        tls: TlsFiles | None,
    ) -> None:
        """Ask nobody yet.

        Args:
            towers: The towers of the model.
            find: Returns the address of each server, "" for one that is away; may wait for a
                server.
            token: The job's secret.
            tls: The files for TLS, if the job uses it.

        Raises:
            ModelError: A tower is too large.
        """
        for tower in towers:
            check_size(tower)
        self._towers = towers
        self._find = find
        self._tls = tls
        self._metadata = ((TOKEN_KEY, token),)
        self._addresses: Sequence[str] = ()
        self._found_at = 0.0
        self._connecting = threading.Lock()  # forward and backward are asked by two threads
        self._channels: dict[str, tuple[Stamp, Any]] = {}  # with the certificate that it shows

    def forward(self, questions: Sequence[Question]) -> Sequence[TowerAnswer]:
        """Return what towers give; see `AsksTowers.forward`."""
        parts = self._parts([question.ids for question in questions])
        calls = []
        for part in parts:
            asked = questions[part.question]
            request = pb.ForwardRequest(
                tower=asked.tower,
                ids=asked.ids[part.places].astype("<i8").tobytes(),
                training=asked.training,
                dense=_bytes_of(asked.dense),
            )
            calls.append(_Call(part.server, "Forward", request))
        self._ask(calls)
        values = [
            np.zeros((len(asked.ids), self._towers[asked.tower].dim), np.float32)
            for asked in questions
        ]
        windows: list[list[int]] = [[] for _ in questions]
        for part, call in zip(parts, calls, strict=True):
            into = values[part.question]
            into[part.places] = floats_of(call.answer.outputs, into.shape[1])
            windows[part.question].append(call.answer.window)
        return [TowerAnswer(*each) for each in zip(values, windows, strict=True)]

    def backward(
        self, questions: Sequence[tuple[Question, TowerAnswer, Float32]]
    ) -> Sequence[TowerGradients]:
        """Return the gradients within towers; see `AsksTowers.backward`."""
        parts = self._parts([asked.ids for asked, _, _ in questions])
        windows = [list(outputs.windows) for _, outputs, _ in questions]
        calls = []
        for part in parts:
            asked, _, gradients = questions[part.question]
            request = pb.BackwardRequest(
                tower=asked.tower,
                ids=asked.ids[part.places].astype("<i8").tobytes(),
                gradients=gradients[part.places].astype("<f4").tobytes(),
                window=windows[part.question].pop(0),
                dense=_bytes_of(asked.dense),
            )
            calls.append(_Call(part.server, "Backward", request))
        self._ask(calls)
        found = []
        for number, (asked, _, _) in enumerate(questions):
            size = sum(part.stop - part.start for part in self._towers[asked.tower].dense)
            # -0.0 all over says that there is no gradient, and adds nothing to one.
            dense, sites = np.full(size, -0.0, np.float32), []
            for part, call in zip(parts, calls, strict=True):
                if part.question != number:
                    continue
                if size:
                    dense += floats_of(call.answer.dense, size)[0]
                sites += [_site_of(site) for site in call.answer.sites]
            found.append(TowerGradients(dense, sites))
        return found

    def close(self) -> None:
        """Close all connections."""
        for _, channel in self._channels.values():
            channel.close()

    def _look(self) -> None:
        self._addresses, self._found_at = self._find(), time.monotonic()
        with self._connecting:
            for address in self._channels.keys() - set(self._addresses):
                _, channel = self._channels.pop(address)  # of a server that is gone
                channel.close()

    def _parts(self, ids: Sequence[Int64]) -> list[_Part]:
        """Divide questions by the server of each id, into requests of a bounded size."""
        is_time = time.monotonic() - self._found_at >= _LOOK_SECONDS
        if not self._addresses or (is_time and not all(self._addresses)):
            self._look()
        number, parts = max(1, len(self._addresses)), []
        for question, asked in enumerate(ids):
            owners = (asked.astype(np.uint64) * _OTHERS >> np.uint64(32)) % np.uint64(number)
            for server in range(number):
                places = np.flatnonzero(owners == server)
                for start in range(0, len(places), MAX_IDS):
                    parts.append(_Part(question, server, places[start : start + MAX_IDS]))
        return parts

    def _ask(self, calls: Sequence[_Call]) -> None:
        """Have each call answered by its server or by the next one that is there.

        Raises:
            ModelError: A tower fails.
            UnavailableError: No server has answered for minutes.
        """
        began, pause, offset, problem = time.monotonic(), _FIRST_PAUSE_SECONDS, 0, ""
        while left := [call for call in calls if call.answer is None]:
            if offset:
                waited = time.monotonic() - began
                if waited > _GIVE_UP_SECONDS:
                    raise UnavailableError(
                        f"no model server has answered for {waited:.0f} s: {problem or 'none'}"
                    )
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                self._look()
            # All requests are sent before the first answer is read, so that the servers compute at
            # the same time.
            sent = [(call, self._send(call, offset)) for call in left]
            for call, future in sent:
                if future is not None:
                    problem = self._take(call, future) or problem
            offset += 1

    def _send(self, call: _Call, offset: int) -> Any:
        """Send a request to its server or to a later one; None if no server is known."""
        number = len(self._addresses)
        order = [self._addresses[(call.server + offset + k) % number] for k in range(number)]
        address = next((address for address in order if address), "")
        if not address:
            return None
        method = getattr(self._stub(address), call.method)
        try:
            return method.future(call.request, timeout=_ATTEMPT_SECONDS, metadata=self._metadata)
        except ValueError:  # the other thread has just closed this channel
            return None

    def _take(self, call: _Call, future: Any) -> str:
        """Read an answer; return what went wrong if another attempt may succeed."""
        try:
            call.answer = future.result()
        except grpc.FutureCancelledError:
            return "the channel was closed"
        except grpc.RpcError as error:
            if error.code() in _TRANSIENT:
                log.info("a model server does not answer: %s; asking again", error.details())
                return str(error.details())
            raise _error_of(error) from error
        return ""

    def _stub(self, address: str) -> Any:
        stamp = () if self._tls is None else self._tls.stamp()
        with self._connecting:
            known, channel = self._channels.get(address, (None, None))
            if channel is None or known != stamp:  # a renewed certificate needs a new channel
                options = list({**dict(CLIENT_OPTIONS), **dict(SIZE_LIMITS)}.items())
                newer = open_channel(address, options, self._tls, MODEL_SERVER_NAME)
                self._channels[address] = (stamp, newer)
                if channel is not None:
                    channel.close()  # what the other thread has asked there is asked again
                channel = newer
        return ModelServerStub(channel)


def _bytes_of(dense: Float32 | None) -> bytes:
    return b"" if dense is None else dense.astype("<f4").tobytes()


def _site_of(site: pb.SiteGradients) -> SiteGradient:
    ids = np.frombuffer(site.ids, "<i8")
    gradient = np.frombuffer(site.gradients, "<f4")
    return SiteGradient(site.table, ids, gradient.reshape(len(ids), -1))


def _error_of(error: grpc.RpcError) -> ElasticdlError:
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        return ModelError(f"a model server: {error.details()}")
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return AuthenticationError(f"a model server: {error.details()}")
    return ElasticdlError(f"a model server refused a request: {error.details()}")
