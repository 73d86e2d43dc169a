"""The places of the core's tests of checkpoints."""

from tests.unit.checkpoints.conftest import place

__all__ = ["place"]
