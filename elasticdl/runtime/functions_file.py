"""What the model files that `elasticdl.train` writes import.

The package `notebooks` has the code: this name stands for its module `functions_file`.
"""

import sys
from typing import TYPE_CHECKING, Any

from elasticdl import registry

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


sys.modules[__name__] = registry.module(__name__, "notebooks")
