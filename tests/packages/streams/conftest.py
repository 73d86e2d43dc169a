"""The played master of the core's tests, for the features of streams, and what their jobs need."""

from tests.elastic.conftest import load_module
from tests.unit.master.conftest import master_kit

__all__ = ["load_module", "master_kit"]
