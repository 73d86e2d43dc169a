"""The model moves to another number of ps replicas; see docs/designs/resharding.md."""
