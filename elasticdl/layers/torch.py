"""The layers of models in PyTorch: `Embedding` and others, with tables on the ps replicas.

The package `torch` has the code: this name stands for its module `layers`.
"""

import sys
from typing import TYPE_CHECKING, Any

from elasticdl import registry

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


sys.modules[__name__] = registry.module(__name__, "torch")
