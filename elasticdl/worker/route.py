"""Where the ps replicas are, as this worker knows it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from elasticdl.errors import UnavailableError
from elasticdl.job import PsRoute

log = logging.getLogger(__name__)
_HALFWAY = -2  # the generation of no route, so the next heartbeat is given the master's again
Client = TypeVar("Client", bound="Movable")


class Movable(Protocol):
    """What of `PsClient` a route needs."""

    def set_addresses(self, layout: int, addresses: Sequence[str]) -> None:
        """Reach all replicas where they are now, perhaps another number of them."""
        ...


class Route:
    """The client's way to the replicas; the heartbeat's thread keeps it up to date.

    generation: the `PsRoute` that the client follows. It changes before the client does and is -1
        while the client is moved, so that whoever finds the same generation before and after some
        reads knows that none of them came from a successor.
    """

    def __init__(self, generation: int = 0) -> None:
        """Start at a route that never changes, unless a client is given it by `begin`."""
        self.generation = generation
        self._client: Movable | None = None
        self._changed = threading.Condition()

    @property
    def known(self) -> int:
        """The generation to compare the master's with; -1: there is no client to move yet."""
        return -1 if self._client is None else self.generation

    def begin(self, client: Movable, generation: int) -> None:
        """Take charge of a client that was connected by a route of this generation."""
        self.generation, self._client = generation, client

    def follow(self, route: PsRoute) -> None:
        """Have the client go where the replicas are; calls that wait for one go on there."""
        assert self._client is not None
        self.generation = -1
        try:
            self._client.set_addresses(route.layout, route.addresses)
        except BaseException:
            self.generation = _HALFWAY
            raise
        with self._changed:
            self.generation = route.generation
            self._changed.notify_all()
        log.info("ps replicas are at %s", ", ".join(a or "(none yet)" for a in route.addresses))

    def reach(self, generation: int, timeout_seconds: float) -> None:
        """Wait until the client follows a route at least this new.

        Raises:
            UnavailableError: It was not told of one in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.generation >= generation, timeout_seconds):
                raise UnavailableError(
                    f"the master did not say within {timeout_seconds:.0f} s where the ps replicas "
                    f"of generation {generation} are; known is {self.generation}"
                )


def connect(ask: Callable[[], PsRoute], dial: Callable[[PsRoute], Client], route: Route) -> Client:
    """Connect to the replicas, wherever they move meanwhile.

    Args:
        ask: The master's route, once all replicas are there.
        dial: Connects to where the replicas are; gives up within seconds.
        route: Takes charge of the client.

    Raises:
        UnavailableError: A replica that is part of the job cannot be reached.
    """
    found = ask()
    while True:
        try:
            client = dial(found)
        except UnavailableError:
            before, found = found, ask()
            if found == before:
                raise
        else:
            route.begin(client, found.generation)
            return client
