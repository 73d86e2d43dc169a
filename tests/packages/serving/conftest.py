"""The played master of the core's tests, for exports that go on."""

from tests.unit.master.conftest import master_kit, recovery_game

__all__ = ["master_kit", "recovery_game"]
