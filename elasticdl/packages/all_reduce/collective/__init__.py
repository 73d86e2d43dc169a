"""All-reduce among the workers of a world."""

from elasticdl.packages.all_reduce.collective.group import Group
from elasticdl.packages.all_reduce.collective.world import WorldView, form_ring

__all__ = ["Group", "WorldView", "form_ring"]
