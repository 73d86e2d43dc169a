"""The results of `elasticdl data analyze`, for model files.

The package `data_tools` has the code: this name stands for its module `model_statistics`.
"""

import sys
from typing import TYPE_CHECKING, Any

from elasticdl import registry

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


sys.modules[__name__] = registry.module(__name__, "data_tools")
