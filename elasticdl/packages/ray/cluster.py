"""Connects this process to a Ray cluster, and asks the cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import grpc

from elasticdl.distribution import install
from elasticdl.errors import ConfigError, LaunchError
from elasticdl.packages.ray.resources import Amounts, RayNode

NAMESPACE = "elasticdl"
"""The Ray namespace of the actors of all jobs."""

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_INIT_SECONDS = 30.0  # together less than a minute

_WHO_IT_IS = "/ray.rpc.NodeInfoGcsService/GetClusterId"
_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
"""The variables of a cluster that wants authentication; Ray sends them."""


log = logging.getLogger(__name__)


def keeper_name(job_name: str) -> str:
    """Return the name of the actor that keeps the master of a job."""
    return f"elasticdl/{job_name}"


def library() -> ModuleType:
    """Import Ray.

    Raises:
        ConfigError: Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"--launcher=ray needs Ray: {install('ray')}") from error
    found: ModuleType = ray
    return found


def connect(address: str) -> None:
    """Connect this process to a cluster, once.

    Raises:
        ConfigError: Ray is not installed.
        LaunchError: No cluster answers at the address.
    """
    ray = library()
    if ray.is_initialized():
        return
    _quieten()
    with _signals_kept():
        try:
            place = _answering(address)
            _within(
                _INIT_SECONDS,
                lambda: ray.init(
                    address=place, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR"
                ),
            )
        except Exception as error:  # of many kinds: ConnectionError, RuntimeError, ValueError
            raise LaunchError(
                f"--ray_address={address}: no Ray cluster can be reached from here: {error}; "
                "expected that this machine is a node of a cluster: ray start --head, or "
                "ray start --address=HOST:PORT"
            ) from error


def _within(seconds: float, work: Callable[[], object]) -> None:
    """Do work that may never end, in a thread that is left running then.

    Raises:
        TimeoutError: The work did not end in time.
    """
    done: Future[None] = Future()

    def run() -> None:
        try:
            work()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="connect to Ray", daemon=True).start()
    try:
        done.result(seconds)
    except TimeoutError:
        if done.done():
            raise
        raise TimeoutError(f"Ray has not connected in {seconds:.0f} s") from None


def _answering(address: str) -> str:
    """Return HOST:PORT of a cluster that answers there; Ray itself would wait for minutes.

    Raises:
        OSError: There is no answer, or not from a cluster, or no cluster is known here.
        ValueError: The address has another form.
    """
    from ray._private import services

    # Ray uses the address of this machine in place of 127.0.0.1.
    place: str = services.canonicalize_bootstrap_address_or_die(address)
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        _ask_who_it_is(place)
    except OSError as error:
        of = "" if place == address else f" ({place})"
        raise ConnectionError(f"{error}{of}") from error
    return place


def _ask_who_it_is(place: str) -> None:
    """Ask a cluster for its identity.

    Raises:
        ConnectionError: The other end does not know the request.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return  # it answers whom it knows
    with grpc.insecure_channel(place, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(_WHO_IT_IS)(b"", timeout=_ANSWER_SECONDS)
        except grpc.RpcError as error:
            if error.code() not in _REFUSALS:
                raise ConnectionError(
                    "what listens there does not answer as the head of a Ray cluster "
                    f"({error.code().name.lower()})"
                ) from error


def last_line(error: Exception) -> str:
    """Return the last line of Ray's error text; the other lines are its traceback."""
    return str(error).strip().split("\n")[-1]


def find_actor(name: str) -> Any | None:
    """Return an actor that was or will be started; None if it does not exist, or has ended."""
    try:
        return library().get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def actors_below(prefix: str) -> list[str]:
    """Return the names of the actors that begin with a prefix."""
    found = library().util.list_named_actors(all_namespaces=True)
    return sorted(
        each["name"]
        for each in found
        if each["namespace"] == NAMESPACE and each["name"].startswith(prefix)
    )


def kill_actor(name: str) -> None:
    """End an actor at once, and prevent its restart."""
    actor = find_actor(name)
    if actor is not None:
        library().kill(actor, no_restart=True)


def nodes() -> list[RayNode]:
    """Return the nodes that are alive."""
    draining = draining_nodes()
    return [
        RayNode(node["NodeID"], node["Resources"], node["NodeID"] in draining)
        for node in library().nodes()
        if node["Alive"]
    ]


def free() -> Amounts:
    """Return the free resources of all nodes together."""
    found: Amounts = library().available_resources()
    return found


def draining_nodes() -> dict[str, float]:
    """Return the nodes that are being drained: identity -> seconds left, at most a day.

    Ray has no public function for this; Ray's own trainers use the same call.
    """
    library()
    from ray._private.state import state

    now = time.time()
    found: dict[str, int] = state.get_draining_nodes()
    return {
        node: max(0.0, deadline / 1000 - now) if deadline else 86_400.0
        for node, deadline in found.items()
    }


def ask_autoscaler(wanted: Sequence[Amounts]) -> None:
    """Ask for nodes with room for these amounts, in place of the request before."""
    library()
    from ray.autoscaler.sdk import request_resources

    try:
        request_resources(bundles=[dict(amounts) for amounts in wanted])
    except Exception as error:  # a cluster that nobody scales
        log.debug("the autoscaler is not asked: %s", error)


def _quieten() -> None:
    """Keep Ray from printing its nodes' messages; the launcher tells of its processes."""
    from ray._private import worker

    worker.print_to_stdstream = lambda data, *_, **__: log.debug("Ray says: %s", data.get("lines"))


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the handlers of signals: Ray's driver installs its own handler for SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
