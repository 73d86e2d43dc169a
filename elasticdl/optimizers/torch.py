"""Clips gradients for optimizers of PyTorch, as in `clip_grad_norm(torch.optim.Adam(...), 1.0)`.

The package `torch` has the code: this name stands for its module `clipping`.
"""

import sys
from typing import TYPE_CHECKING, Any

from elasticdl import registry

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


sys.modules[__name__] = registry.module(__name__, "torch")
