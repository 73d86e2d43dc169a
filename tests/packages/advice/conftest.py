"""The played master of the core's tests."""

from tests.unit.master.conftest import master_kit

__all__ = ["master_kit"]
