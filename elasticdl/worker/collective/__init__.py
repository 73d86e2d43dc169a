"""All-reduce among the workers of a world."""

from elasticdl.worker.collective.group import Group
from elasticdl.worker.collective.world import WorldView, form_ring

__all__ = ["Group", "WorldView", "form_ring"]
