"""A world: which workers reduce together, and the ring that they form."""

from __future__ import annotations

from dataclasses import dataclass

from elasticdl._core import Ring, RingListener


@dataclass(frozen=True, slots=True)
class WorldView:
    """The result of one rendezvous, as one of its members sees it.

    rendezvous_id: Grows with each agreement, so it tells one from the next.
    rank: The place of this process among the members, from 0.
    members: The address of each rank's listener, by rank; the same for all members.
    """

    rendezvous_id: int
    rank: int
    members: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse what is no world."""
        if not 0 <= self.rank < self.size:
            raise ValueError(
                f"world {self.rendezvous_id}: rank {self.rank}, expected 0 to {self.size - 1}"
            )
        if len(set(self.members)) != self.size:
            raise ValueError(
                f"world {self.rendezvous_id}: members {', '.join(self.members)}, expected each once"
            )

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.members)


def form_ring(
    world: WorldView,
    listener: RingListener,
    *,
    timeout_seconds: float,
    silence_seconds: float = 5.0,
    unix_sockets: bool = True,
    shared_memory: bool = True,
) -> Ring:
    """Connect with the other members; return when all have joined.

    Args:
        world: Its member at `rank` is the address of `listener`, as the others know it.
        listener: This process's own; it outlives the ring.
        timeout_seconds: All are reached within this time, and have joined within as much again.
        silence_seconds: A neighbour that gives no sign of life for so long is given up.
        unix_sockets: Use Unix sockets between members on one host.
        shared_memory: Reduce through shared memory if all members are on one host.

    Raises:
        RingError: A rank did not join, or is none of this job's; names it.
    """
    return Ring.form(
        listener,
        world.rendezvous_id,
        world.rank,
        world.members,
        timeout_seconds=timeout_seconds,
        silence_seconds=silence_seconds,
        unix_sockets=unix_sockets,
        shared_memory=shared_memory,
    )
