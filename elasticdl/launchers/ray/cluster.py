"""The connection of this process to a Ray cluster, and what it asks there."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from elasticdl.distribution import install
from elasticdl.errors import ConfigError, LaunchError
from elasticdl.launchers.ray.resources import Amounts, RayNode

NAMESPACE = "elasticdl"
"""That of the actors of all jobs."""

_CONNECT_SECONDS = 5.0

log = logging.getLogger(__name__)


def keeper_name(job_name: str) -> str:
    """Return the name of the actor that keeps the master of a job."""
    return f"elasticdl/{job_name}"


def library() -> ModuleType:
    """Import Ray.

    Raises:
        ConfigError: It is not installed.
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
        LaunchError: No cluster answers there.
    """
    ray = library()
    if ray.is_initialized():
        return
    _quieten()
    with _signals_kept():
        try:
            ray.init(
                address=_answering(address),
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except Exception as error:  # of many kinds: ConnectionError, RuntimeError, ValueError
            raise LaunchError(
                f"--ray_address={address}: no Ray cluster can be reached from here: {error}; "
                "expected that this machine is a node of a cluster: ray start --head, or "
                "ray start --address=HOST:PORT"
            ) from error


def _answering(address: str) -> str:
    """Return HOST:PORT of a cluster that answers there; Ray itself would wait for minutes.

    Raises:
        OSError: Nobody answers, or no cluster is known here.
        ValueError: It is an address of another kind.
    """
    from ray._private import services

    if address == "auto":
        address = services.canonicalize_bootstrap_address_or_die(address)
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    return address


def last_line(error: Exception) -> str:
    """Return the last line of what Ray says of an error; the others are where it came from."""
    return str(error).strip().split("\n")[-1]


def find_actor(name: str) -> Any | None:
    """Return an actor that was or will be started, None if there is none, or no more."""
    try:
        return library().get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def actors_below(prefix: str) -> list[str]:
    """Return the names of the actors whose names begin alike."""
    found = library().util.list_named_actors(all_namespaces=True)
    return sorted(
        each["name"]
        for each in found
        if each["namespace"] == NAMESPACE and each["name"].startswith(prefix)
    )


def kill_actor(name: str) -> None:
    """End an actor at once, and for good."""
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
    """Return what is free on all nodes together."""
    found: Amounts = library().available_resources()
    return found


def draining_nodes() -> dict[str, float]:
    """Return the nodes that are being taken away: identity -> seconds left, at most a day.

    Ray has no public question for it; its own trainers ask this one.
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
    """Ask for nodes that hold what is wanted, in place of what was asked for before."""
    library()
    from ray.autoscaler.sdk import request_resources

    try:
        request_resources(bundles=[dict(amounts) for amounts in wanted])
    except Exception as error:  # a cluster that nobody scales
        log.debug("the autoscaler is not asked: %s", error)


def _quieten() -> None:
    """Have Ray not print what its nodes complain of: what became of our processes we say."""
    from ray._private import worker

    worker.print_to_stdstream = lambda data, *_, **__: log.debug("Ray says: %s", data.get("lines"))


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep the handlers of signals: a driver of Ray sets its own for SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
