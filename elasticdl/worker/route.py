"""Keeps the addresses of the ps replicas, as this worker knows them."""

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
    """The part of `PsClient` that a route needs."""

    def set_addresses(self, layout: int, addresses: Sequence[str]) -> None:
        """Use these addresses for all replicas; their number may have changed."""
        ...


class Route:
    """The client's way to the replicas; the heartbeat's thread keeps it up to date.

    generation: The `PsRoute` that the client follows. It is set to -1 before the client is moved.
        If a caller finds the same generation before and after some reads, no successor answered any
        of them.
    """

    def __init__(self, generation: int = 0) -> None:
        """Start at a route that never changes, unless a client is given it by `begin`."""
        self.generation = generation
        self._client: Movable | None = None
        self._changed = threading.Condition()

    @property
    def known(self) -> int:
        """The generation to compare with the master's; -1: there is no client to move yet."""
        return -1 if self._client is None else self.generation

    def begin(self, client: Movable, generation: int) -> None:
        """Take over a client that was connected by a route of this generation."""
        self.generation, self._client = generation, client

    def follow(self, route: PsRoute) -> None:
        """Move the client to new addresses; calls that wait for a replica continue there."""
        assert self._client is not None
        # Readers must not find the old generation while the client already asks new replicas.
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
            UnavailableError: No such route came in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.generation >= generation, timeout_seconds):
                raise UnavailableError(
                    f"the master did not say within {timeout_seconds:.0f} s where the ps replicas "
                    f"of generation {generation} are; known is {self.generation}"
                )


def connect(ask: Callable[[], PsRoute], dial: Callable[[PsRoute], Client], route: Route) -> Client:
    """Connect to the replicas, even if they move meanwhile.

    Args:
        ask: Returns the master's route, once all replicas are there.
        dial: Connects to the addresses of a route; gives up within seconds.
        route: Takes charge of the client.

    Raises:
        UnavailableError: A replica that is part of the job cannot be reached.
    """
    found = ask()
    while True:
        try:
            client = dial(found)
        except UnavailableError:
            # The replica may have moved since the route was asked for. Only a second failure at the
            # same place is an error.
            before, found = found, ask()
            if found == before:
                raise
        else:
            route.begin(client, found.generation)
            return client
