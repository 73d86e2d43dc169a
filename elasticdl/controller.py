"""Elastic data shards and all-reduce for a user's own training loop, run by `elasticdl run`.

The package `own_loops` has the code: this name stands for its module `controller`.
"""

import sys
from typing import TYPE_CHECKING, Any

from elasticdl import registry

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


sys.modules[__name__] = registry.module(__name__, "own_loops")
