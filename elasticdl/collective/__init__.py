"""All-reduce among the workers of a world."""

from elasticdl.collective.group import Group
from elasticdl.collective.world import World, form_ring

__all__ = ["Group", "World", "form_ring"]
