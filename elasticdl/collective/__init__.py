"""All-reduce among the workers of a world."""

from elasticdl.collective.world import World, form_ring

__all__ = ["World", "form_ring"]
