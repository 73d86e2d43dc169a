"""Plays masters of jobs of all-reduce, as `tests/unit/master` does."""

from tests.unit.master.conftest import master_kit

__all__ = ["master_kit"]
