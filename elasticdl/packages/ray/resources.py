"""Computes the requests of a job's actors, and why they wait. The functions have no effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elasticdl.config import JobConfig
from elasticdl.job import Role
from elasticdl.settings.resources import parse_quantity

_NAMES = {"cpu": "CPU", "memory": "memory", "nvidia.com/gpu": "GPU"}
_GIB = 1 << 30

Amounts = Mapping[str, float]
"""Names of resources as Ray has them (CPU, GPU, memory in bytes), and the amount of each."""


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of the cluster: its identity, all its resources, and whether it is being drained."""

    id: str
    amounts: Amounts
    is_draining: bool = False


def asked_for(config: JobConfig, role: Role) -> dict[str, float]:
    """Return the request of a process's actor, from `--worker_resource_request` and the like.

    Raises:
        ValueError: Ray has no such resource.
    """
    asked: dict[str, float] = {}
    for name, quantity in config.resources.requests(role).items():
        if name == "ephemeral-storage":
            raise ValueError("expected cpu, memory, gpu or a resource of the nodes, found disk")
        asked[_NAMES.get(name, name)] = float(parse_quantity(quantity))
    return asked


def options_of(asked: Amounts) -> dict[str, object]:
    """Return the options of an actor that asks for these amounts."""
    others = {name: value for name, value in asked.items() if name not in _NAMES.values()}
    return {
        "num_cpus": asked.get("CPU", 0),
        "num_gpus": asked.get("GPU", 0),
        "memory": int(asked.get("memory", 0)) or None,
        "resources": others or None,
    }


def is_feasible(asked: Amounts, nodes: Sequence[RayNode]) -> bool:
    """Return whether some node could hold the actor if it were empty."""
    return any(_fits(asked, node.amounts) for node in nodes if not node.is_draining)


def why_it_waits(
    asked: Amounts, nodes: Sequence[RayNode], free: Amounts, is_late: bool = False
) -> str:
    """Return why an actor is not started yet; "" if it may be about to start.

    Args:
        asked: The actor's request.
        nodes: The nodes of the cluster.
        free: The free resources of all nodes together.
        is_late: The actor would have been started by now if one node had room.
    """
    there = [node for node in nodes if not node.is_draining]
    count = f"{len(there)} node{'s' * (len(there) != 1)}"
    if len(there) < len(nodes):
        count += f" ({len(nodes) - len(there)} more being drained)"
    if is_feasible(asked, nodes):
        if _fits(asked, free) and not is_late:
            return ""
        return (
            f"no room on the Ray cluster: asked is {_words(asked)}; free on its {count} together: "
            f"{_words({name: free.get(name, 0.0) for name in asked})}"
        )
    most = {name: max((n.amounts.get(name, 0.0) for n in there), default=0.0) for name in asked}
    return (
        f"no node of the Ray cluster is large enough: asked is {_words(asked)}; the most that one "
        f"of its {count} has: {_words(most)}. The autoscaler is asked for such a node, if there is "
        "one; or ask for less with --worker_resource_request and the like"
    )


def _fits(asked: Amounts, has: Amounts) -> bool:
    return all(has.get(name, 0.0) >= amount for name, amount in asked.items())


def _words(amounts: Amounts) -> str:
    return ", ".join(
        f"{name} {amount / _GIB:.3g} GiB" if name == "memory" else f"{name} {amount:g}"
        for name, amount in amounts.items()
    )
