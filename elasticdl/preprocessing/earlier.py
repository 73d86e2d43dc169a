"""Layers of `elasticdl_preprocessing` of ElasticDL 0.x whose arguments differ from today's.

The package `keras` has the code: this name stands for its module `preprocessing.earlier`.
"""

import sys
from typing import TYPE_CHECKING, Any

from elasticdl import registry

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


sys.modules[__name__] = registry.module(__name__, "keras")
