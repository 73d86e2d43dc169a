"""Features that the core does not know, a folder each. `elasticdl/registry.py` finds them."""
